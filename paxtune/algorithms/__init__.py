"""Algorithms that search."""

from paxtune.algorithms.base import Algorithm, Exhausted, PastTrial, Request, Suggestion
from paxtune.algorithms.dna_generator import DnaGenerator
from paxtune.algorithms.eagle import Eagle
from paxtune.algorithms.random_search import RandomSearch
from paxtune.algorithms.regularized_evolution import RegularizedEvolution
from paxtune.algorithms.sweeping import Sweeping
from paxtune.algorithms.vizier_designer import VizierDesigner

__all__ = [
    'Algorithm',
    'DnaGenerator',
    'Eagle',
    'Exhausted',
    'PastTrial',
    'RandomSearch',
    'RegularizedEvolution',
    'Request',
    'Suggestion',
    'Sweeping',
    'VizierDesigner',
]
