"""Trials in this process, one after another."""

import dataclasses

from paxtune.engines.base import Engine, Job
from paxtune.running.tuner import Tuner


@dataclasses.dataclass(frozen=True)
class InProcess(Engine):
    """Runs the trials in this process, one after another."""

    joins = True

    def run(self, job: Job) -> None:
        Tuner(job.study, job.runner, job.callbacks, job.should_interrupt).run()
