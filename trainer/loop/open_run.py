"""A run before its next step: prepared by checks that write nothing, then opened."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

from absl import logging
from etils import epath

from trainer.checkpoints import end_marker, experiment_record
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.checkpoints.local_store import LocalStore, restore_newest
from trainer.checkpoints.manifest import Progress
from trainer.checkpoints.retention import RetentionPolicy
from trainer.experiment import Experiment, TrainLoop
from trainer.loop.metric_names import require_best_metric
from trainer.loop.report import Interrupted
from trainer.loop.run_inputs import RunInputs
from trainer.loop.run_texts import run_texts
from trainer.program.packing.place import Alone
from trainer.program.packing.stepper import Stepper
from trainer.program.program import Program
from trainer.program.setup import (
    begin_compiling,
    compiled,
    data_shard,
    localized,
    prepare_inputs,
)
from trainer.runtime import processes
from trainer.runtime.directory import job_path
from trainer.runtime.garbage_collection import GcSchedule
from trainer.runtime.metric_writer import MetricWriter
from trainer.runtime.profiling import Profiler
from trainer.runtime.signals import Signal
from trainer.runtime.wall_clock import INITIALIZATION, during
from trainer.symbolic.concrete import concrete
from trainer.symbolic.errors import NonFiniteLossError
from trainer.symbolic.serialization import to_json_text
from trainer.warm_start.warm_start import (
    Source,
    WarmStartLoader,
    frozen_parameters,
    warm_start_sources,
)

_ENDS = (Signal, NonFiniteLossError, Interrupted, GeneratorExit)
"""Errors after which a run has ended, or is saved durably: it needs no local checkpoint."""

_warned: set[str] = set()


@dataclasses.dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to start; `prepare_run` makes it.

    Attributes:
        experiment: a concrete one, whose inputs know the data shard of this process; the data
            exist and suit the task.
        record: the text of the experiment.
        job_log_dir: the directory of the run.
        warm_start: checkpoints to start from; empty if the run resumes.
        changes: changes of the experiment with which the run resumes.
    """

    experiment: Experiment
    record: str
    job_log_dir: epath.Path
    warm_start: tuple[Source, ...]
    changes: tuple[experiment_record.Change, ...] = ()


@during(INITIALIZATION)
def prepare_run(
    experiment: Experiment, job_log_dir: epath.PathLike, allow_changes: bool = False
) -> PreparedRun:
    """Resolves an experiment, prepares its inputs, and finds the checkpoints of its warm start.

    Args:
        experiment: without open decisions.
        job_log_dir: the directory of the run.
        allow_changes: resume also with another task, other data or another seed.

    Raises:
        UserError: a decision is open, data is missing, there is no checkpoint to start from, the
            metric of the best checkpoint is not measured, or the run has another experiment.
    """
    processes.require_joined()
    job_log_dir = job_path(job_log_dir)
    experiment = concrete(experiment)
    record, (num_shards, _) = to_json_text(experiment), data_shard(experiment)
    changes = experiment_record.changes_of_resumption(job_log_dir, record, num_shards)
    if not allow_changes:
        experiment_record.require_free(job_log_dir, changes)
    experiment = localized(experiment)
    prepare_inputs(experiment)
    require_best_metric(experiment)
    for text in experiment.without_effect():
        if text not in _warned:  # The trials of a search say the same.
            logging.warning('%s', text)
            _warned.add(text)
    sources = warm_start_sources(experiment, job_log_dir)
    return PreparedRun(experiment, record, epath.Path(job_log_dir), tuple(sources), tuple(changes))


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is ready for its next step; `open_run` makes it.

    Attributes:
        experiment: a concrete one, whose inputs know the data shard of this process.
        job_log_dir: the directory of the run.
        stepper: the state, and the program with its random key and its numbers.
        inputs: the training input, and the positions of all inputs.
        checkpoints: the durable checkpoints of the run.
        local: its local checkpoints, if it has any.
        garbage: the schedule of the garbage collector.
        profiler: profiles some steps.
        writer: writes metrics, in the first process.
        resumed_from: the step from which the run resumes; 0 for a fresh run.
        progress: the progress at that step.
    """

    experiment: Experiment
    job_log_dir: epath.Path
    stepper: Stepper
    inputs: RunInputs
    checkpoints: CheckpointStore
    local: LocalStore | None
    garbage: GcSchedule
    profiler: Profiler
    writer: MetricWriter | None
    resumed_from: int
    progress: Progress

    @property
    def loop(self) -> TrainLoop:
        """The settings of the train loop."""
        return self.experiment.train

    @property
    def program(self) -> Program:
        """The compiled program of the experiment."""
        return self.stepper.program

    @property
    def steps_per_execution(self) -> int:
        """The largest number of train steps in one execution."""
        is_several = self.loop.executes_several_steps and self.stepper.can_do_several
        return self.loop.steps_per_execution if is_several else 1

    @property
    def max_in_flight(self) -> int:
        """The number of executions that may run behind the dispatched one."""
        return min(self.program.max_in_flight, self.loop.max_inflight_steps)

    def compile(self) -> None:
        """Compiles the steps of all executions, and of evaluations, before the first step."""
        counts = {1, self.steps_per_execution}
        self.program.begin_compiling(counts, [])
        for count in counts:
            self.program.train_steps(count)
        self.program.end_compiling()

    def remove_local(self) -> None:
        """Removes the local checkpoints."""
        if self.local is not None:
            self.local.remove()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of a step, in the first process."""
        if self.writer is not None:
            self.writer.write(step, metrics)


@contextlib.contextmanager
def open_run(
    prepared: PreparedRun, profiler: Profiler | None = None, place: Alone | None = None
) -> Iterator[Run]:
    """Opens a run at its newest checkpoint, at the start of its warm start, or at step 0.

    Leaving the context finishes all writes, unless another process was lost, which makes that
    impossible.

    Args:
        prepared: the experiment, and the directory.
        profiler: profiles some steps.
        place: where the run does its steps; by default it shares this process with no other.

    Raises:
        UserError: the experiment does not fit the devices or the checkpoints.
        SaveError: a save failed.
    """
    with contextlib.ExitStack() as opened:
        run = _opened(prepared, profiler or Profiler(), place or Alone(), opened)
        held = opened.pop_all()
    try:
        yield run
        run.remove_local()
    except _ENDS:
        run.remove_local()
        raise
    finally:
        if not processes.is_lost():
            held.close()


@during(INITIALIZATION)
def _opened(
    prepared: PreparedRun, profiler: Profiler, place: Alone, opened: contextlib.ExitStack
) -> Run:
    experiment, job_log_dir = prepared.experiment, prepared.job_log_dir
    program, values = compiled(experiment)
    loop, sources = experiment.train, prepared.warm_start
    warm_start = WarmStartLoader(experiment, sources, program) if sources else None
    random_key = program.random_key(loop.random_seed)
    job_log_dir.mkdir(parents=True, exist_ok=True)
    processes.agree()  # Now all processes are ready to begin.
    end_marker.remove(job_log_dir)
    begin_compiling(experiment, program)
    for data in experiment.inputs_by_path.values():
        opened.callback(data.close)
    garbage = opened.enter_context(GcSchedule(loop.gc_interval_steps))
    retention = None if loop.checkpoints is None else RetentionPolicy(loop.checkpoints)
    checkpoints = CheckpointStore(job_log_dir / 'checkpoints', retention)
    opened.callback(checkpoints.close)
    local = None
    if loop.local_checkpoints is not None:
        local = LocalStore(loop.local_checkpoints, job_log_dir / 'checkpoints', prepared.record)
        opened.callback(local.close)
    frozen = frozen_parameters(experiment, program, values)
    restored = restore_newest(checkpoints, local, program.abstract_state, frozen)
    if restored is not None:
        step, _, state, progress = restored
        logging.info('Resumed from step %d', step)
    elif warm_start is not None:
        state = warm_start.load(random_key, values)
        warm_start.write_provenance(job_log_dir)
        step, progress = int(state.step), Progress(spent=warm_start.spent())
    else:
        state = program.init(random_key, values)
        step, progress = 0, Progress()
    inputs = RunInputs(experiment, program.data_shard)
    if restored is not None:
        inputs.resume(progress, restored.path)
    if retention is not None:
        retention.from_json(progress.best)
    stepper = place.stepper(program, state, random_key, values)
    writer = None
    if processes.is_first():
        experiment_record.write(job_log_dir, prepared.record, step, prepared.changes)
        writer = MetricWriter(job_log_dir, step)
        opened.callback(writer.close)
        if prepared.changes or not writer.has_texts:
            # A run that resumes again drops texts of its own step, but none of step 0.
            texts = run_texts(experiment, program.abstract_state.params)
            writer.write_texts(texts, step if writer.has_texts else 0)
    opened.callback(profiler.close)
    return Run(
        experiment,
        job_log_dir,
        stepper,
        inputs,
        checkpoints,
        local,
        garbage,
        profiler,
        writer,
        step,
        progress,
    )
