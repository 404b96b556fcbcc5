"""Search algorithms: each suggests trials from a search space and observations.

An algorithm has a file or folder here; `encoding` is what they share, `external` adapts those of
other libraries. Schedulers and studies lie elsewhere.
"""

from paxtune.algorithms.base import Algorithm, Exhausted, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.cma_es.cma_es import CMAES
from paxtune.algorithms.default import Default
from paxtune.algorithms.evolution.crossover import Crossover, LayerRangeCrossover, UniformCrossover
from paxtune.algorithms.evolution.mutations import (
    AnyMutation,
    ChangeLayer,
    ChangeOneDecision,
    DeleteLayer,
    InsertLayer,
    Mutation,
    SwapLayers,
)
from paxtune.algorithms.evolution.nsga2 import NSGA2
from paxtune.algorithms.evolution.regularized import RegularizedEvolution
from paxtune.algorithms.external.eagle import Eagle
from paxtune.algorithms.external.pyglove import DnaGenerator
from paxtune.algorithms.external.vizier import VizierDesigner
from paxtune.algorithms.gp.bandit import GPBandit
from paxtune.algorithms.grid import Grid
from paxtune.algorithms.hill_climbing import HillClimbing
from paxtune.algorithms.quasi_random import QuasiRandom
from paxtune.algorithms.random_search import RandomSearch

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
    'Observation',
    'QuasiRandom',
    'RandomSearch',
    'RegularizedEvolution',
    'Suggestion',
    'SuggestionContext',
    'SwapLayers',
    'UniformCrossover',
    'VizierDesigner',
]
