"""Trials in this process, one after another."""

import dataclasses

from paxtune.engines.base import Engine, Job
from paxtune.running.runner import Runner
from paxtune.running.tuner import Tuner
from trainer.symbolic.errors import UserError


@dataclasses.dataclass(frozen=True)
class InProcess(Engine):
    """Runs the trials in this process, one after another.

    Attributes:
        precompiles: compiles the program of the next trial while a trial runs.
    """

    precompiles: bool = dataclasses.field(default=False, kw_only=True)

    joins = True

    def run(self, job: Job) -> None:
        callbacks = list(job.callbacks)
        if self.precompiles:
            from paxtune.running.precompiler import Precompiler

            callbacks.append(Precompiler())
        Tuner(job.study, job.runner, callbacks, job.should_interrupt).run()

    def require_function(self, runner: Runner) -> None:
        if self.precompiles:
            raise UserError('--precompile is for the trials of experiments, not of a function')
