"""Policies that decide how far trials are trained."""

from paxtune.schedulers.asha import Asha
from paxtune.schedulers.base import Curve, Fork, Pause, Policy, Promote, Stop, Wait
from paxtune.schedulers.curve_extrapolation import CurveExtrapolation
from paxtune.schedulers.hyperband import Hyperband
from paxtune.schedulers.median import MedianStopping
from paxtune.schedulers.pbt import PopulationBasedTraining
from paxtune.schedulers.promoting_asha import PromotingAsha
from paxtune.schedulers.rank import ByRank
from paxtune.schedulers.threshold import ByValue

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
