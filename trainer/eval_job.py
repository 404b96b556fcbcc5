"""`--mode=eval` and `--mode=eval_once`: checkpoints are evaluated beside a run, or after it."""

import contextlib
from collections.abc import Callable

from etils import epath

from trainer import command, processes
from trainer.checkpoint import Checkpoints, Restored
from trainer.directory import job_path
from trainer.errors import UserError
from trainer.evaluate import evaluate
from trainer.experiment import Experiment
from trainer.following import Follower, following
from trainer.program import Program, Values
from trainer.rolling import Rolling
from trainer.setup import compiled, localized, prepare_inputs
from trainer.summaries import Summaries

JOB = 'eval'
"""The name of the job, of its directory in `jobs`, and of what it has in `summaries`."""

Report = Callable[[int, dict[str, float]], None]
"""Is told a step and its metrics."""


def evaluate_each(experiment: Experiment, job_log_dir: epath.PathLike, report: Report) -> None:
    """Evaluates every checkpoint of a run, in order, as it appears, until training has ended.

    What was measured is in `jobs/eval/metrics.jsonl` and `summaries/eval`. A job that starts again
    goes on with the first checkpoint that is not there.

    Raises:
        UserError: bad input, a checkpoint is of another experiment, or another process is doing
            this.
    """
    experiment = _prepared(experiment)
    with following(job_log_dir, JOB) as follower:
        program, values = compiled(experiment)
        with contextlib.closing(_Writer(job_path(job_log_dir), follower)) as writer:
            for restored in follower.checkpoints(program.abstract_state):
                metrics = _metrics(experiment, program, values, restored)
                writer.write(restored.step, metrics)
                report(restored.step, metrics)


def evaluate_newest(experiment: Experiment, job_log_dir: epath.PathLike, report: Report) -> None:
    """Evaluates the newest checkpoint.

    Raises:
        UserError: bad input, or there is no checkpoint.
    """
    path = job_path(job_log_dir) / 'checkpoints'
    if not path.exists():
        raise UserError(f'--job_log_dir: there are no checkpoints in {path}')
    experiment = _prepared(experiment)
    program, values = compiled(experiment)
    with contextlib.closing(Checkpoints(path)) as checkpoints:
        restored = checkpoints.restore(program.abstract_state)
    if restored is None:
        raise UserError(f'--job_log_dir: there is no checkpoint that can be read in {path}')
    report(restored.step, _metrics(experiment, program, values, restored))


def _prepared(experiment: Experiment) -> Experiment:
    if not experiment.eval_inputs:
        raise UserError('eval_inputs: there is nothing to evaluate on')
    experiment = localized(command.concrete(experiment))
    prepare_inputs(experiment)
    return experiment


def _metrics(
    experiment: Experiment, program: Program, values: Values, restored: Restored
) -> dict[str, float]:
    Rolling(experiment.eval_inputs).resume(restored.progress)
    return evaluate(experiment, program, restored.state, values)


class _Writer:
    """Writes the metrics of steps, in the first process."""

    def __init__(self, job_log_dir: epath.PathLike, follower: Follower) -> None:
        self._follower = follower
        self._scalars = epath.Path(job_log_dir) / 'summaries' / JOB
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
