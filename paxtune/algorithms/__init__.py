"""Algorithms that search."""

from paxtune.algorithms.base import Algorithm, PastTrial, Request, Suggestion
from paxtune.algorithms.random_search import RandomSearch
from paxtune.algorithms.regularized_evolution import RegularizedEvolution

__all__ = [
    'Algorithm',
    'PastTrial',
    'RandomSearch',
    'RegularizedEvolution',
    'Request',
    'Suggestion',
]
