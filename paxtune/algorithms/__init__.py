"""Algorithms that search."""

from paxtune.algorithms.base import Algorithm, Exhausted, PastTrial, Request, Suggestion
from paxtune.algorithms.cma_es import CMAES
from paxtune.algorithms.default import Default
from paxtune.algorithms.gp.bandit import GPBandit
from paxtune.algorithms.grid import Grid
from paxtune.algorithms.hill_climbing import HillClimbing
from paxtune.algorithms.nsga2 import NSGA2
from paxtune.algorithms.quasi_random import QuasiRandom
from paxtune.algorithms.random_search import RandomSearch
from paxtune.algorithms.regularized_evolution import RegularizedEvolution

__all__ = [
    'CMAES',
    'NSGA2',
    'Algorithm',
    'Default',
    'Exhausted',
    'GPBandit',
    'Grid',
    'HillClimbing',
    'PastTrial',
    'QuasiRandom',
    'RandomSearch',
    'RegularizedEvolution',
    'Request',
    'Suggestion',
]
