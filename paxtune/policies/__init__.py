"""Policies that decide how far trials are trained."""

from paxtune.policies.asha import Asha
from paxtune.policies.base import Curve, Fork, Pause, Policy, Promote, Stop, Wait
from paxtune.policies.by_median import MedianStopping
from paxtune.policies.by_rank import ByRank
from paxtune.policies.by_value import ByValue
from paxtune.policies.curve_extrapolation import CurveExtrapolation
from paxtune.policies.hyperband import Hyperband
from paxtune.policies.population_based_training import PopulationBasedTraining
from paxtune.policies.promoting_asha import PromotingAsha

__all__ = [
    'Asha',
    'ByRank',
    'ByValue',
    'Curve',
    'CurveExtrapolation',
    'Fork',
    'Hyperband',
    'MedianStopping',
    'Pause',
    'Policy',
    'PopulationBasedTraining',
    'Promote',
    'PromotingAsha',
    'Stop',
    'Wait',
]
