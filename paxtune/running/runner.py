"""The interface of runners."""

from collections.abc import Callable, Generator

from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.workload import StoredWorkload
from trainer.loop.report import Report


class Runner:
    """Runs the trials of a study, each to its end."""

    def prepare(self, study: Study, trial: RunningTrial) -> str | None:
        """Gets a trial ready, and returns why it is infeasible before it begins; None if not."""
        return None

    def run(
        self, study: Study, trial: RunningTrial, should_interrupt: Callable[[], bool]
    ) -> Generator[Report, None, None]:
        """Runs a trial.

        Args:
            trial: an ACTIVE one.
            should_interrupt: asked often; on True the trial saves itself and raises
                `trainer.loop.report.Interrupted`.
        """
        raise NotImplementedError(type(self).__name__)

    @property
    def num_devices(self) -> int:
        """The number of devices that a trial runs on."""
        return 0

    def worker_flags(self) -> list[str]:
        """Returns the flags of `paxtune.worker` that make this runner; UserError if none do."""
        return []


class RunnerWorkload(StoredWorkload):
    """A value that makes the runner of its trials. Workers find it through the study."""

    def runner(self) -> Runner:
        """Makes the runner of its trials."""
        raise NotImplementedError(type(self).__name__)
