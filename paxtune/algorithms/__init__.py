"""Algorithms that search."""

from paxtune.algorithms.base import Algorithm, Exhausted, PastTrial, Request, Suggestion
from paxtune.algorithms.gp.bandit import GPBandit
from paxtune.algorithms.random_search import RandomSearch
from paxtune.algorithms.regularized_evolution import RegularizedEvolution
from paxtune.algorithms.sweeping import Sweeping

__all__ = [
    'Algorithm',
    'Exhausted',
    'GPBandit',
    'PastTrial',
    'RandomSearch',
    'RegularizedEvolution',
    'Request',
    'Suggestion',
    'Sweeping',
]
