"""The interface of runners."""

import dataclasses
from collections.abc import Callable, Generator
from typing import TypeAlias

from paxtune.running.worker_arguments import WorkerArguments
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from trainer.loop.report import Report

Reports: TypeAlias = Generator[Report, None, None]

Running: TypeAlias = Callable[[Callable[[], bool]], Reports]
"""Runs a trial that is ready. It often asks its argument whether to stop.

On True the trial saves itself, and raises `trainer.loop.report.Interrupted`.
"""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """The reason why a trial is infeasible before it begins."""

    reason: str


class Runner:
    """Runs the trials of a study, each to its end."""

    def prepare(self, study: Study, trial: RunningTrial) -> Running | Refusal:
        """Gets an ACTIVE trial ready, and returns the function that runs it."""
        raise NotImplementedError(type(self).__name__)

    @property
    def num_devices(self) -> int:
        """The number of devices that a trial runs on."""
        return 0

    def worker_arguments(self, definition: str) -> WorkerArguments:
        """Returns the arguments of workers that run the trials; UserError if none can.

        Args:
            definition: the fingerprint of the study's definition.
        """
        return WorkerArguments(definition)
