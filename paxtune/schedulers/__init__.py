"""Schedulers: they decide how far trials are trained, and which ones stop, pause or fork.

A scheduler is a pure function of the learning curves of a study's trials. Carrying out its
decisions, and storing them, is the job of `paxtune.study`.
"""

from paxtune.schedulers.asha import Asha
from paxtune.schedulers.base import Fork, Pause, Promote, Scheduler, Stop, TrialCurve, Wait
from paxtune.schedulers.curve_extrapolation import CurveExtrapolation
from paxtune.schedulers.hyperband import Hyperband
from paxtune.schedulers.median import MedianStopping
from paxtune.schedulers.pbt import PopulationBasedTraining
from paxtune.schedulers.promoting_asha import PromotingAsha
from paxtune.schedulers.rank import RankStopping
from paxtune.schedulers.threshold import ThresholdStopping

__all__ = [
    'Asha',
    'CurveExtrapolation',
    'Fork',
    'Hyperband',
    'MedianStopping',
    'Pause',
    'PopulationBasedTraining',
    'Promote',
    'PromotingAsha',
    'RankStopping',
    'Scheduler',
    'Stop',
    'ThresholdStopping',
    'TrialCurve',
    'Wait',
]
