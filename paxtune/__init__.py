"""paxtune: tunes experiments that run on a full, sharded Pax-style trainer.

Names are imported when they are first used, so that `import paxtune` costs nothing.

Example:
    >>> import paxtune
    >>> paxtune.Tunable.__name__
    'Tunable'
"""

from etils import epy

with epy.lazy_api_imports(globals()):
    from paxtune.algorithms import CMAES as CMAES
    from paxtune.algorithms import NSGA2 as NSGA2
    from paxtune.algorithms import AnyMutation as AnyMutation
    from paxtune.algorithms import ChangeLayer as ChangeLayer
    from paxtune.algorithms import ChangeOneDecision as ChangeOneDecision
    from paxtune.algorithms import Default as Default
    from paxtune.algorithms import DeleteLayer as DeleteLayer
    from paxtune.algorithms import DnaGenerator as DnaGenerator
    from paxtune.algorithms import Eagle as Eagle
    from paxtune.algorithms import GPBandit as GPBandit
    from paxtune.algorithms import Grid as Grid
    from paxtune.algorithms import HillClimbing as HillClimbing
    from paxtune.algorithms import InsertLayer as InsertLayer
    from paxtune.algorithms import LayerRangeCrossover as LayerRangeCrossover
    from paxtune.algorithms import QuasiRandom as QuasiRandom
    from paxtune.algorithms import RandomSearch as RandomSearch
    from paxtune.algorithms import RegularizedEvolution as RegularizedEvolution
    from paxtune.algorithms import SwapLayers as SwapLayers
    from paxtune.algorithms import UniformCrossover as UniformCrossover
    from paxtune.algorithms import VizierDesigner as VizierDesigner
    from paxtune.api import load_study as load_study
    from paxtune.api import tune as tune
    from paxtune.callbacks import Callback as Callback
    from paxtune.console import Progress as Progress
    from paxtune.constraints import Constraint as Constraint
    from paxtune.constraints import Infeasible as Infeasible
    from paxtune.constraints import Requires as Requires
    from paxtune.cross_step import BestStep as BestStep
    from paxtune.cross_step import LastStep as LastStep
    from paxtune.cross_step import MeanOfSteps as MeanOfSteps
    from paxtune.experiment import Tunable as Tunable
    from paxtune.failures import ErrorPattern as ErrorPattern
    from paxtune.limits import Limit as Limit
    from paxtune.metrics import Metric as Metric
    from paxtune.policies import Asha as Asha
    from paxtune.policies import ByRank as ByRank
    from paxtune.policies import ByValue as ByValue
    from paxtune.policies import CurveExtrapolation as CurveExtrapolation
    from paxtune.policies import Hyperband as Hyperband
    from paxtune.policies import MedianStopping as MedianStopping
    from paxtune.policies import PopulationBasedTraining as PopulationBasedTraining
    from paxtune.policies import PromotingAsha as PromotingAsha
    from paxtune.rewards import MetricReward as MetricReward
    from paxtune.rewards import MnasHard as MnasHard
    from paxtune.rewards import MnasSoft as MnasSoft
    from paxtune.rewards import Objectives as Objectives
    from paxtune.rewards import TunasAbsolute as TunasAbsolute
    from paxtune.rewards import WeightedSum as WeightedSum
    from paxtune.searching import Search as Search
    from paxtune.study import Study as Study
    from paxtune.sweeps import parameter_sweep as parameter_sweep
    from trainer.derived import derived as derived
    from trainer.ranges import intv as intv
    from trainer.signals import SkipTrial as SkipTrial
    from trainer.signals import StopTrial as StopTrial
