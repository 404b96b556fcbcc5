"""Policies that decide how far trials are trained."""

from paxtune.policies.base import Curve, Fork, Pause, Policy, Promote, Stop, Wait
from paxtune.policies.by_median import MedianStopping
from paxtune.policies.by_rank import ByRank
from paxtune.policies.by_value import ByValue
from paxtune.policies.curve_extrapolation import CurveExtrapolation

__all__ = [
    'ByRank',
    'ByValue',
    'Curve',
    'CurveExtrapolation',
    'Fork',
    'MedianStopping',
    'Pause',
    'Policy',
    'Promote',
    'Stop',
    'Wait',
]
