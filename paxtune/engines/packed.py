"""Trials in this process, several at a time, whose train steps run as one program."""

import dataclasses
from collections.abc import Callable
from typing import Literal

from paxtune.engines.base import Engine, Job, require_counts
from paxtune.engines.supervised import require_one_process
from paxtune.engines.threads import run_in_threads
from paxtune.running.experiment_runner import ExperimentRunner, runner_in
from paxtune.running.runner import Runner
from paxtune.running.tuner import Tuner
from trainer.runtime import processes
from trainer.symbolic.errors import UserError

_AUTO = 8  # Trials at a time where measurements decide whether they train as one program.


@dataclasses.dataclass(frozen=True)
class Packed(Engine):
    """Runs several trials at a time in this process.

    Trials whose programs have the same structure train as one program, which `jax.vmap` makes.
    Small models then use a device that one of them would leave idle. Each trial has its own
    metrics, checkpoints and scheduler decisions, as if it were alone. When one ends, the next
    suggestion takes its place, without a compilation.

    The numbers of a trial differ by rounding errors from the same trial alone. A trial is
    charged its share of the time.

    Attributes:
        count: trials at a time. 'auto' runs 8, and as one program only where measured steps are
            faster so.

    Raises:
        UserError: the count is below 2.
    """

    count: int | Literal['auto'] = 'auto'

    def __post_init__(self) -> None:
        if self.count != 'auto':
            require_counts(self, 'count')
        if self.count == 1:
            raise UserError('Packed(1): expected at least 2 trials, or auto')

    @property
    def description(self) -> str:
        if self.count == 'auto':
            return (
                f'in this process, one trial after another, or {_AUTO} at a time if that is faster'
            )
        return f'in this process, {self.count} at a time'

    @property
    def trials_at_once(self) -> int:
        return _AUTO if self.count == 'auto' else self.count

    @property
    def trials_per_process(self) -> int:
        return self.trials_at_once

    def run(self, job: Job) -> None:
        # Imported here: a command without --pack needs none of it.
        from trainer.program.packing.lanes import Lanes

        require_packable(job.runner)
        lanes = Lanes(self.trials_at_once, 'measured' if self.count == 'auto' else 'always')

        def work(index: int, should_interrupt: Callable[[], bool]) -> None:
            with lanes.lane(index) as lane:
                Tuner(job.study, runner_in(lane), (), should_interrupt, lane).join()

        run_in_threads(job, lanes.count, work)


def require_packable(runner: Runner) -> None:
    """Raises UserError unless the trials of a runner can train as one program in this process."""
    if type(runner) is not ExperimentRunner:
        raise UserError('--pack is for the trials of experiments')
    require_one_process(processes.count())
