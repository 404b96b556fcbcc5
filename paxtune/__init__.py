"""paxtune: tunes Python functions, and experiments on a full, sharded, Pax-style trainer.

Names are imported when they are first used, so that `import paxtune` costs nothing.

Example:
    >>> from paxtune import intv, tune
    >>> tune(lambda x: x, space={'x': intv(1, 3)}, objective='minimize').best.reward
    1.0
"""

import shutil as _shutil
import sys as _sys
import textwrap as _textwrap
from pathlib import Path as _Path

from etils import epy

from paxtune import clashes as _clashes

for _message in _clashes.found(_Path(__file__).parents[1]):
    if _sys.argv[:1] != ['-m']:
        raise ImportError(_message)
    # A command that Python has not found yet: `python -m paxtune.search`.
    _columns = _shutil.get_terminal_size().columns if _sys.stderr.isatty() else 10**6
    _lines = _textwrap.wrap(f'error: {_message}', _columns, break_long_words=False)
    print(*_lines, sep='\n', file=_sys.stderr)
    raise SystemExit(2)

__version__ = '0.3.0'

with epy.lazy_api_imports(globals()):
    from paxtune import plots as plots
    from paxtune.algorithms import CMAES as CMAES
    from paxtune.algorithms import NSGA2 as NSGA2
    from paxtune.algorithms import TPE as TPE
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
    from paxtune.algorithms import Portfolio as Portfolio
    from paxtune.algorithms import QuasiRandom as QuasiRandom
    from paxtune.algorithms import RandomSearch as RandomSearch
    from paxtune.algorithms import RegularizedEvolution as RegularizedEvolution
    from paxtune.algorithms import SwapLayers as SwapLayers
    from paxtune.algorithms import UniformCrossover as UniformCrossover
    from paxtune.algorithms import VizierDesigner as VizierDesigner
    from paxtune.api import tune as tune
    from paxtune.config.budget import Budget as Budget
    from paxtune.config.error_patterns import ErrorPattern as ErrorPattern
    from paxtune.config.faults import Faults as Faults
    from paxtune.config.retention import Retention as Retention
    from paxtune.config.search import Search as Search
    from paxtune.engines.in_process import InProcess as InProcess
    from paxtune.engines.multi_host import MultiHost as MultiHost
    from paxtune.engines.packed import Packed as Packed
    from paxtune.engines.ray_cluster.engine import Ray as Ray
    from paxtune.engines.remote import Remote as Remote
    from paxtune.engines.slurm_cluster.engine import Slurm as Slurm
    from paxtune.engines.threads import Threads as Threads
    from paxtune.engines.workers import Workers as Workers
    from paxtune.experiment import Tunable as Tunable
    from paxtune.objectives.aggregation import BestStep as BestStep
    from paxtune.objectives.aggregation import LastStep as LastStep
    from paxtune.objectives.aggregation import MeanOfSteps as MeanOfSteps
    from paxtune.objectives.limits import Limit as Limit
    from paxtune.objectives.metrics import Metric as Metric
    from paxtune.objectives.rewards import MetricReward as MetricReward
    from paxtune.objectives.rewards import MnasHard as MnasHard
    from paxtune.objectives.rewards import MnasSoft as MnasSoft
    from paxtune.objectives.rewards import Objectives as Objectives
    from paxtune.objectives.rewards import TunasAbsolute as TunasAbsolute
    from paxtune.objectives.rewards import WeightedSum as WeightedSum
    from paxtune.running.callbacks import Callback as Callback
    from paxtune.schedulers import Adaptive as Adaptive
    from paxtune.schedulers import Asha as Asha
    from paxtune.schedulers import Hyperband as Hyperband
    from paxtune.schedulers import MedianStopping as MedianStopping
    from paxtune.schedulers import PopulationBasedTraining as PopulationBasedTraining
    from paxtune.schedulers import PromotingAsha as PromotingAsha
    from paxtune.schedulers import RankStopping as RankStopping
    from paxtune.schedulers import ThresholdStopping as ThresholdStopping
    from paxtune.search_space.constraints import Constraint as Constraint
    from paxtune.search_space.constraints import Infeasible as Infeasible
    from paxtune.search_space.constraints import Requires as Requires
    from paxtune.storage.open_study import load_study as load_study
    from paxtune.storage.open_study import open_study as open_study
    from paxtune.study.study import Study as Study
    from paxtune.study.sweeps import parameter_sweep as parameter_sweep
    from paxtune.terminal.progress import Progress as Progress
    from trainer.runtime.signals import SkipTrial as SkipTrial
    from trainer.runtime.signals import StopTrial as StopTrial
    from trainer.symbolic.derived import derived as derived
    from trainer.symbolic.ranges import floatv as floatv
    from trainer.symbolic.ranges import intv as intv
    from trainer.symbolic.ranges import oneof as oneof

__all__ = [name for name in globals()['__dir__']() if name[0].isalpha() and name != 'epy']
