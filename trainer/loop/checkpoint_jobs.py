"""Jobs that evaluate, or decode from, the checkpoints of a run, during or after training."""

import contextlib
import functools
from collections.abc import Callable
from typing import Literal

from absl import logging
from etils import epath

from trainer.checkpoints import experiment_record
from trainer.checkpoints.checkpoint import CheckpointStore, Restored
from trainer.checkpoints.checkpoint_watcher import CheckpointWatcher, watch_checkpoints
from trainer.checkpoints.manifest import DamagedError
from trainer.experiment import Experiment
from trainer.loop.decode_loop import decode
from trainer.loop.evaluate import evaluate
from trainer.loop.run_inputs import RunInputs
from trainer.metrics import with_nan
from trainer.program.program import Program
from trainer.program.setup import compiled, localized, prepare_inputs
from trainer.program.step_functions import Values
from trainer.runtime import processes
from trainer.runtime.directory import job_path
from trainer.runtime.metric_writer import MetricWriter
from trainer.symbolic.concrete import concrete
from trainer.symbolic.errors import UserError
from trainer.warm_start.warm_start import frozen_parameters

Job = Literal['eval', 'decode']
"""Kind of job; also the name of its directories in `jobs` and `summaries`."""

OnMetrics = Callable[[int, dict[str, float]], None]
"""Receives a step and its metrics."""


def process_each(
    job: Job, experiment: Experiment, job_log_dir: epath.PathLike, on_metrics: OnMetrics
) -> None:
    """Processes every checkpoint of a run, in order, as it appears, until training has ended.

    Metrics go to `jobs/<job>/metrics.jsonl` and `summaries/<job>`. A restarted job continues with
    the first checkpoint that is not in there.

    Raises:
        UserError: bad input, a checkpoint belongs to another experiment, or another process runs
            this job.
    """
    job_log_dir = job_path(job_log_dir)
    experiment = _prepared(job, experiment, job_log_dir)
    with watch_checkpoints(job_log_dir, job) as watcher:
        program, values = compiled(experiment)
        frozen = functools.cache(frozen_parameters(experiment, program, values))
        writer = _Writer(job, job_path(job_log_dir), watcher)
        with contextlib.closing(writer):
            for restored in watcher.checkpoints(program.abstract_state, frozen):
                found = _metrics(job, experiment, program, values, restored, job_log_dir)
                # As in a run, nothing is written of an undefined metric.
                writer.write(
                    restored.step, {n: each for n, each in found.items() if each is not None}
                )
                on_metrics(restored.step, with_nan(found))


def process_one(
    job: Job,
    experiment: Experiment,
    job_log_dir: epath.PathLike,
    on_metrics: OnMetrics,
    step: int | None = None,
) -> None:
    """Processes the checkpoint of a step, by default the newest.

    Raises:
        UserError: bad input, or there is no such checkpoint.
    """
    job_log_dir = job_path(job_log_dir)
    path = job_log_dir / 'checkpoints'
    if not path.exists():
        raise UserError(f'--job_log_dir: there are no checkpoints in {path}')
    experiment = _prepared(job, experiment, job_log_dir)
    program, values = compiled(experiment)
    frozen, restored = frozen_parameters(experiment, program, values), None
    with contextlib.closing(CheckpointStore(path)) as checkpoints:
        if step is None:
            restored = checkpoints.restore(program.abstract_state, frozen)
        else:
            with contextlib.suppress(DamagedError):
                restored = checkpoints.restore_step(step, program.abstract_state, frozen)
    if restored is None:
        which = '' if step is None else f' of step {step}'
        raise UserError(f'--job_log_dir: there is no readable checkpoint{which} in {path}')
    found = _metrics(job, experiment, program, values, restored, job_log_dir)
    on_metrics(restored.step, with_nan(found))


def _prepared(job: Job, experiment: Experiment, job_log_dir: epath.PathLike) -> Experiment:
    if not experiment.sym_getattr(f'{job}_inputs'):
        verb = 'evaluate on' if job == 'eval' else 'decode'
        raise UserError(f'{job}_inputs: there is nothing to {verb}')
    experiment = concrete(experiment)
    record = experiment_record.recorded(experiment)
    for change in experiment_record.changes(job_log_dir, record):
        if change.path.startswith('task'):  # Other data, or devices, are the job's own affair.
            logging.warning('%s was trained with another task:%s', job_log_dir, change)
    experiment = localized(experiment)
    prepare_inputs(experiment)
    return experiment


def _metrics(
    job: Job,
    experiment: Experiment,
    program: Program,
    values: Values,
    restored: Restored,
    job_log_dir: epath.PathLike,
) -> dict[str, float | None]:
    RunInputs(experiment, program.data_shard).resume_evaluation(restored.progress)
    if job == 'eval':
        return evaluate(experiment, program, restored.state, values)
    path = epath.Path(job_path(job_log_dir))
    return {**decode(experiment, program, restored.state, values, path)}


class _Writer:
    """Writes the metrics of a job, in the first process."""

    def __init__(self, job: Job, job_log_dir: epath.PathLike, watcher: CheckpointWatcher) -> None:
        self._directory = watcher.directory
        self._scalars = epath.Path(job_log_dir) / 'summaries' / job
        self._last: int | None = None
        self._writer: MetricWriter | None = None

    def write(self, step: int, metrics: dict[str, float]) -> None:
        if not processes.is_first():
            return
        if self._last is None or step <= self._last:
            # Replaces records that an earlier process wrote for this step and later ones.
            self.close()
            self._writer = MetricWriter(self._directory, step, self._scalars)
        self._last = step
        assert self._writer is not None
        self._writer.write(step, metrics)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
