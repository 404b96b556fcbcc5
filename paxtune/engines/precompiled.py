"""Trials in this process, with the program of the next one compiled meanwhile."""

import dataclasses

from paxtune.engines.base import Job
from paxtune.engines.in_process import InProcess
from paxtune.running.runner import Runner
from paxtune.running.runners import ExperimentRunner
from paxtune.running.tuner import Tuner
from trainer.runtime import processes
from trainer.symbolic.errors import UserError

_EXPERIMENTS_ONLY = '--precompile is for the trials of experiments'


@dataclasses.dataclass(frozen=True)
class Precompiled(InProcess):
    """Runs the trials in this process, and compiles the program of the next one meanwhile."""

    def require_function(self, runner: Runner) -> None:
        raise UserError(_EXPERIMENTS_ONLY)

    def run(self, job: Job) -> None:
        from paxtune.running.precompiler import Precompiler

        if type(job.runner) is not ExperimentRunner:
            raise UserError(_EXPERIMENTS_ONLY)
        if processes.count() > 1:
            raise UserError('--precompile: several processes compile nothing ahead')
        callbacks = [*job.callbacks, Precompiler()]
        Tuner(job.study, job.runner, callbacks, job.should_interrupt).run()
