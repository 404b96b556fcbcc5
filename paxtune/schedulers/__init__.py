"""Schedulers: they decide how far trials are trained, and which ones stop, pause or fork.

A scheduler is a pure function of the learning curves of a study's trials. Carrying out its
decisions, and storing them, is the job of `paxtune.study`.
"""

from paxtune.schedulers.adaptive import Adaptive as Adaptive
from paxtune.schedulers.asha import Asha as Asha
from paxtune.schedulers.base import Fork as Fork
from paxtune.schedulers.base import Pause as Pause
from paxtune.schedulers.base import Promote as Promote
from paxtune.schedulers.base import Scheduler as Scheduler
from paxtune.schedulers.base import Stop as Stop
from paxtune.schedulers.base import TrialCurve as TrialCurve
from paxtune.schedulers.base import Wait as Wait
from paxtune.schedulers.hyperband import Hyperband as Hyperband
from paxtune.schedulers.median import MedianStopping as MedianStopping
from paxtune.schedulers.pbt import PopulationBasedTraining as PopulationBasedTraining
from paxtune.schedulers.promoting_asha import PromotingAsha as PromotingAsha
from paxtune.schedulers.rank import RankStopping as RankStopping
from paxtune.schedulers.threshold import ThresholdStopping as ThresholdStopping
