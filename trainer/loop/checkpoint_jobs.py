"""Jobs beside a run, or after it: its checkpoints are evaluated, or decoded from."""

import contextlib
from collections.abc import Callable
from typing import Literal

from etils import epath

from trainer import command
from trainer.checkpoints.checkpoint import CheckpointStore, Restored
from trainer.checkpoints.checkpoint_follower import Follower, following
from trainer.checkpoints.manifest import DamagedError
from trainer.experiment import Experiment
from trainer.loop.decode_loop import decode
from trainer.loop.evaluate import evaluate
from trainer.loop.rolling_eval import Rolling
from trainer.program.program import Program, Values
from trainer.program.setup import compiled, inputs_by_path, localized, prepare_inputs
from trainer.runtime import processes
from trainer.runtime.directory import job_path
from trainer.runtime.metric_writer import Summaries
from trainer.symbolic.errors import UserError

Job = Literal['eval', 'decode']
"""What is done with a checkpoint; also the name of the job's directory in `jobs` and of what it has
in `summaries`."""

Report = Callable[[int, dict[str, float]], None]
"""Is told a step and its metrics."""


def treat_each(
    job: Job, experiment: Experiment, job_log_dir: epath.PathLike, report: Report
) -> None:
    """Treats every checkpoint of a run, in order, as it appears, until training has ended.

    What was measured is in `jobs/<job>/metrics.jsonl` and `summaries/<job>`. A job that starts
    again goes on with the first checkpoint that is not there.

    Raises:
        UserError: bad input, a checkpoint is of another experiment, or another process is doing
            this.
    """
    experiment = _prepared(job, experiment)
    with following(job_log_dir, job) as follower:
        program, values = compiled(experiment)
        writer = _Writer(job, job_path(job_log_dir), follower)
        with contextlib.closing(writer):
            for restored in follower.checkpoints(program.abstract_state):
                metrics = _metrics(job, experiment, program, values, restored, job_log_dir)
                writer.write(restored.step, metrics)
                report(restored.step, metrics)


def treat_one(
    job: Job,
    experiment: Experiment,
    job_log_dir: epath.PathLike,
    report: Report,
    step: int | None = None,
) -> None:
    """Treats one checkpoint.

    Args:
        job: what is done.
        experiment: what the run trains.
        job_log_dir: of the run.
        report: is told what was measured.
        step: that of the checkpoint; None for the newest.

    Raises:
        UserError: bad input, or there is no such checkpoint.
    """
    path = job_path(job_log_dir) / 'checkpoints'
    if not path.exists():
        raise UserError(f'--job_log_dir: there are no checkpoints in {path}')
    experiment = _prepared(job, experiment)
    program, values = compiled(experiment)
    with contextlib.closing(CheckpointStore(path)) as checkpoints:
        if step is None:
            restored = checkpoints.restore(program.abstract_state)
        else:
            restored = _of_step(checkpoints, step, program)
    if restored is None:
        which = '' if step is None else f' of step {step}'
        raise UserError(f'--job_log_dir: there is no checkpoint{which} that can be read in {path}')
    metrics = _metrics(job, experiment, program, values, restored, job_log_dir)
    report(restored.step, metrics)


def _of_step(checkpoints: CheckpointStore, step: int, program: Program) -> Restored | None:
    try:
        return checkpoints.restore_step(step, program.abstract_state)
    except DamagedError:
        return None


def _prepared(job: Job, experiment: Experiment) -> Experiment:
    if not experiment.sym_getattr(f'{job}_inputs'):
        verb = 'evaluate on' if job == 'eval' else 'decode'
        raise UserError(f'{job}_inputs: there is nothing to {verb}')
    experiment = localized(command.concrete(experiment))
    prepare_inputs(experiment)
    return experiment


def _metrics(
    job: Job,
    experiment: Experiment,
    program: Program,
    values: Values,
    restored: Restored,
    job_log_dir: epath.PathLike,
) -> dict[str, float]:
    Rolling(inputs_by_path(experiment)).resume(restored.progress, program.infeed_share)
    if job == 'eval':
        return evaluate(experiment, program, restored.state, values)
    return decode(experiment, program, restored.state, values, epath.Path(job_path(job_log_dir)))


class _Writer:
    """Writes the metrics of steps, in the first process."""

    def __init__(self, job: Job, job_log_dir: epath.PathLike, follower: Follower) -> None:
        self._follower = follower
        self._scalars = epath.Path(job_log_dir) / 'summaries' / job
        self._last: int | None = None
        self._summaries: Summaries | None = None

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Puts the metrics of a step on disk."""
        if not processes.is_first():
            return
        if self._last is None or step <= self._last:
            # What an earlier process wrote of this step and later ones is written anew.
            self.close()
            self._summaries = Summaries(self._follower.directory, step, self._scalars)
        self._last = step
        assert self._summaries is not None
        self._summaries.write(step, metrics)
        self._summaries.flush()

    def close(self) -> None:
        """Lets go of the files."""
        if self._summaries is not None:
            self._summaries.close()
