"""Algorithms that search."""

from paxtune.algorithms.base import Algorithm, Exhausted, PastTrial, Request, Suggestion
from paxtune.algorithms.cma_es import CMAES
from paxtune.algorithms.crossover import Crossover, LayerRangeCrossover, UniformCrossover
from paxtune.algorithms.default import Default
from paxtune.algorithms.dna_generator import DnaGenerator
from paxtune.algorithms.eagle import Eagle
from paxtune.algorithms.gp.bandit import GPBandit
from paxtune.algorithms.grid import Grid
from paxtune.algorithms.hill_climbing import HillClimbing
from paxtune.algorithms.mutations import (
    AnyMutation,
    ChangeLayer,
    ChangeOneDecision,
    DeleteLayer,
    InsertLayer,
    Mutation,
    SwapLayers,
)
from paxtune.algorithms.nsga2 import NSGA2
from paxtune.algorithms.quasi_random import QuasiRandom
from paxtune.algorithms.random_search import RandomSearch
from paxtune.algorithms.regularized_evolution import RegularizedEvolution
from paxtune.algorithms.vizier_designer import VizierDesigner

__all__ = [
    'CMAES',
    'NSGA2',
    'Algorithm',
    'AnyMutation',
    'ChangeLayer',
    'ChangeOneDecision',
    'Crossover',
    'Default',
    'DeleteLayer',
    'DnaGenerator',
    'Eagle',
    'Exhausted',
    'GPBandit',
    'Grid',
    'HillClimbing',
    'InsertLayer',
    'LayerRangeCrossover',
    'Mutation',
    'PastTrial',
    'QuasiRandom',
    'RandomSearch',
    'RegularizedEvolution',
    'Request',
    'Suggestion',
    'SwapLayers',
    'UniformCrossover',
    'VizierDesigner',
]
