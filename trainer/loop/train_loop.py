"""The training loop: `run` trains an experiment and yields a report after each evaluation."""

import collections
import contextlib
import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
from absl import logging
from etils import epath

from trainer.checkpoints import end_marker, experiment_record
from trainer.checkpoints.checkpoint import CheckpointStore, Restored
from trainer.checkpoints.checkpoint_watcher import first_unprocessed
from trainer.checkpoints.retention import RetentionPolicy
from trainer.experiment import Experiment
from trainer.inputs.peek import Peekable
from trainer.loop.decode_loop import decode
from trainer.loop.evaluate import evaluate, evaluate_next
from trainer.loop.executions import executions
from trainer.loop.interrupt_policy import InterruptPolicy
from trainer.loop.prepared_run import PreparedRun, prepare_run
from trainer.loop.report import Interrupted, Report
from trainer.loop.resource_counters import ResourceCounters
from trainer.loop.rolling_eval import RollingEval, by_shard
from trainer.loop.run_texts import run_texts
from trainer.loop.train_metrics import TrainMetrics
from trainer.metrics import Metrics
from trainer.program import device_peaks
from trainer.program.costs import static_costs, tokens_per_step
from trainer.program.packing.place import Alone
from trainer.program.setup import compiled, inputs_by_path, localized
from trainer.runtime import pgle, processes, step_events
from trainer.runtime.garbage_collection import GcSchedule
from trainer.runtime.metric_writer import MetricWriter
from trainer.runtime.profiling import Profiler
from trainer.runtime.signals import Signal
from trainer.runtime.throughput import Throughput
from trainer.runtime.wall_clock import (
    CHECKPOINTS,
    EVALUATION,
    INITIALIZATION,
    INPUT,
    STEPS,
    during,
    phase,
)
from trainer.state import TrainState
from trainer.symbolic.errors import NonFiniteLossError, UserError
from trainer.warm_start.warm_start import WarmStartLoader


def run(
    experiment: Experiment,
    job_log_dir: epath.PathLike,
    should_interrupt: Callable[[], bool] = lambda: False,
    profiler: Profiler | None = None,
    allow_changes: bool = False,
    place: Alone | None = None,
) -> Generator[Report, None, None]:
    """Trains an experiment, from its newest checkpoint in `job_log_dir` if there is one.

    The same as `train` of `prepare_run`.

    Args:
        experiment: what to train, without open decisions.
        job_log_dir: directory of experiment.json, metrics.jsonl, summaries/ and checkpoints/.
        should_interrupt: as for `train`.
        profiler: as for `train`.
        allow_changes: as for `prepare_run`.
        place: as for `train`.

    Raises:
        UserError: the experiment cannot run here (no data, a mesh that does not fit …).
        Exception: as `train`.
    """
    with processes.together(), end_marker.on_early_exit(job_log_dir):
        prepared = prepare_run(experiment, job_log_dir, allow_changes)
    for change in prepared.changes:
        logging.warning('%s: the experiment has changed:%s', job_log_dir, change)
    yield from train(prepared, should_interrupt, profiler, place)


def train(
    prepared: PreparedRun,
    should_interrupt: Callable[[], bool] = lambda: False,
    profiler: Profiler | None = None,
    place: Alone | None = None,
) -> Generator[Report, None, None]:
    """Trains a prepared run, from its newest checkpoint if there is one.

    Yields a report after each evaluation, the last of which follows the last step. A run that
    resumes at a step with an evaluation repeats that evaluation, so no report is ever missing.
    Closing the generator stops the run at any time.

    With several processes (`runtime.processes`) all must call this. They yield the same reports
    and end alike, at the same step. The first process writes everything except checkpoints.

    Args:
        prepared: what to train, and where.
        should_interrupt: asked after every execution of steps, and again after the report of the
            last one. On True the run saves that step and raises. Several processes ask before the
            execution instead, finish it, and then save and raise.
        profiler: profiles some steps.
        place: where the run does its steps; by default it shares this process with no other.

    Raises:
        UserError: the experiment does not fit the devices or the checkpoints.
        NonFiniteLossError: the training loss became NaN or infinite.
        Interrupted: `should_interrupt` returned True, or JAX received a preemption notice.
        StopTrial, SkipTrial: raised by code of the experiment.
        OtherProcessError, LostProcessError: another process failed, or was lost.
    """
    with (
        # A failure here ends the other processes, too, before they wait for this one in a save.
        # The inner `together` covers the steps, the outer one the closing.
        processes.together(),
        end_marker.marks_end(prepared.job_log_dir) as marker,
        contextlib.closing(Training(prepared, profiler, place or Alone())) as training,
        processes.together(),
    ):
        try:
            yield from training.reports(should_interrupt)
        except Signal as signal:
            signal.step = training.step
            raise
        finally:
            marker.step = training.step


class Training:
    """One run: its program, its state, and its files."""

    @during(INITIALIZATION)
    def __init__(self, prepared: PreparedRun, profiler: Profiler | None, place: Alone) -> None:
        experiment, job_log_dir = prepared.experiment, prepared.job_log_dir
        self._profiler, self._job_log_dir = profiler, job_log_dir
        self._experiment = localized(experiment)
        inputs = inputs_by_path(self._experiment)
        self._program, self._values = compiled(self._experiment)
        self._loop = experiment.train
        self._tokens_per_step = int(tokens_per_step(self._experiment))
        self._input = Peekable(self._experiment.train_input)
        self._rolling = RollingEval(inputs)
        sources = prepared.warm_start
        warm = WarmStartLoader(experiment, sources, self._program) if sources else None
        random_key = self._program.random_key(self._loop.random_seed)
        self._train_metrics = TrainMetrics()
        self._throughput = Throughput()
        self._resources = ResourceCounters(self._throughput)
        self._to_summarize: int | None = None  # Its metrics are written once the step is done.
        job_log_dir.mkdir(parents=True, exist_ok=True)
        processes.agree()  # Now all processes are ready to begin.
        end_marker.remove(job_log_dir)
        with contextlib.ExitStack() as opened:
            for data in inputs.values():
                opened.callback(data.close)
            self._garbage = opened.enter_context(GcSchedule(self._loop.gc_interval_steps))
            path, checkpoints = job_log_dir / 'checkpoints', self._loop.checkpoints
            self._retention = None if checkpoints is None else RetentionPolicy(checkpoints)
            self._checkpoints = CheckpointStore(path, self._retention)
            opened.callback(self._checkpoints.close)
            self._saved: tuple[int, str] | None = None
            state, self.resumed_from = self._restore_or_init(warm, random_key)
            self._run = place.stepper(self._program, state, random_key, self._values)
            is_several = self._loop.executes_several_steps and self._run.can_do_several
            is_several &= not pgle.is_enabled()  # JAX profiles, and compiles again, single steps.
            self._steps_per_execution = self._loop.steps_per_execution if is_several else 1
            del state  # Its buffers are donated in the first step.
            self.step = self.resumed_from
            self._writer: MetricWriter | None = None
            if processes.is_first():
                experiment_record.write(
                    job_log_dir, experiment, self.resumed_from, prepared.changes
                )
                self._writer = MetricWriter(job_log_dir, self.resumed_from)
                opened.callback(self._writer.close)
                if prepared.changes or not self._writer.has_texts:
                    self._write_texts(self._writer)
            if profiler is not None:
                opened.callback(profiler.close)
            self._opened = opened.pop_all()

    def _write_texts(self, writer: MetricWriter) -> None:
        texts = run_texts(self._experiment, self._program.abstract_state.params)
        # A run that resumes again drops texts of its own step, but none of step 0.
        writer.write_texts(texts, self.resumed_from if writer.has_texts else 0)

    def reports(self, should_interrupt: Callable[[], bool]) -> Iterator[Report]:
        """Trains to the last step."""
        interrupt = InterruptPolicy(should_interrupt)
        if self.resumed_from and self._is_due(self.resumed_from, self._loop.evaluation.every):
            yield self._measure(self.resumed_from)
            if interrupt.before_training() and self.resumed_from < self._loop.num_train_steps:
                raise Interrupted(self.resumed_from)  # Nothing is new since that checkpoint.
        max_in_flight = min(self._program.max_in_flight, self._loop.max_inflight_steps)
        in_flight: collections.deque[Metrics] = collections.deque()
        saving = self._loop.checkpoints
        first, last = self.resumed_from + 1, self._loop.num_train_steps
        for steps in executions(first, last, self._steps_per_execution, self._loop.intervals):
            in_flight.append(self._execute(steps, interrupt))
            self.step = step = steps[-1]
            step_events.notify(step)
            if len(in_flight) > max_in_flight:
                with phase(STEPS):
                    jax.block_until_ready(in_flight.popleft())
            self._garbage.after(step)
            if self._is_due(step, self._loop.summary_interval_steps):
                self._to_summarize = step
            if saving is not None and self._is_due(step, saving.every):
                self._save(step)
            has_reported = self._is_due(step, self._loop.evaluation.every)
            if has_reported:
                report = self._measure(step)
                with self._throughput.paused():
                    yield report
                self._throughput.start()
            if interrupt.after_steps(steps, has_reported) and step < self._loop.num_train_steps:
                self._save(step)
                self._checkpoints.wait()
                raise Interrupted(step)
        self._summarize()
        self._checkpoints.wait()

    def close(self) -> None:
        """Finishes all writes, unless another process was lost, which makes that impossible.

        Raises:
            SaveError: a save failed.
        """
        if not processes.is_lost():
            self._opened.close()

    def _restore_or_init(
        self, warm: WarmStartLoader | None, random_key: jax.Array
    ) -> tuple[TrainState, int]:
        restored = self._checkpoints.restore(self._program.abstract_state)
        if restored is None and warm is not None:
            state = warm.load(random_key, self._values)
            warm.write_provenance(self._job_log_dir)
            self._resources = ResourceCounters(self._throughput, warm.spent())
            return state, int(state.step)
        if restored is None:
            return self._program.init(random_key, self._values), 0
        self._input.set_position(self._own_position(restored))
        self._rolling.resume(restored.progress, self._program.data_shard)
        self._train_metrics = TrainMetrics(restored.progress['train_metrics'])
        if self._retention is not None:
            self._retention.from_json(restored.progress['best'])
        self._resources = ResourceCounters(self._throughput, restored.progress['spent'])
        self._saved = (restored.step, restored.path)
        logging.info('Resumed from step %d', restored.step)
        return restored.state, restored.step

    def _positions(self, step: int) -> dict[str, Any]:
        _, shard = self._program.data_shard
        found = by_shard(processes.gather([shard, self._input.get_position()]))
        positions: dict[str, Any] = {'positions': found}
        if self._rolling.inputs:
            rolling = processes.gather([shard, self._rolling.positions(step)])
            positions[RollingEval.KEY] = by_shard(rolling)
        return positions

    def _own_position(self, restored: Restored) -> dict[str, Any]:
        positions: list[dict[str, Any]] = restored.progress['positions']
        count, index = self._program.data_shard
        if len(positions) == count:
            return positions[index]
        inputs = {'train_input': self._experiment.train_input}
        inputs |= self._rolling.inputs
        for path, data in inputs.items():
            if not data.positions_are_global:
                raise UserError(
                    f'{path}: {len(positions)} processes, each with its own shard of the data, '
                    f'wrote {restored.path}; now there are {count}. A position in '
                    f'{type(data).__name__} is valid for its shard alone: start '
                    f'{len(positions)} processes, or start anew in another --job_log_dir'
                )
        return positions[0]  # All are the same.

    def _is_due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self._loop.num_train_steps

    @during(STEPS)
    def _execute(self, steps: range, interrupt: InterruptPolicy) -> Metrics:
        if self._is_due(steps[0] - 1, self._loop.evaluation.every):
            self._train_metrics.start_interval()
        with phase(INPUT):
            batch = self._program.put_several([self._input.get_next_padded() for _ in steps])
        self._compile()  # Before all processes agree on the steps.
        interrupt.before_steps(steps)
        is_first, count = steps[0] == self.resumed_from + 1, len(steps)
        if is_first and count > 1:
            self._start_clock()
        if self._profiler is not None:
            self._profiler.before(steps, self._job_log_dir)
        metrics = self._run.step(batch) if count == 1 else self._run.steps(batch, count)
        if self._profiler is not None:
            self._profiler.after(steps, metrics)
        self._summarize()  # Writes an earlier step, while this one runs.
        self._train_metrics.add(steps, metrics)
        tokens = self._tokens_per_step * count
        self._resources.count(tokens)
        if is_first and count == 1:
            jax.block_until_ready(metrics)  # Leaves out what the first execution alone has to do.
            self._start_clock()
        else:
            self._throughput.count(tokens, count)
        return metrics

    def _compile(self) -> None:
        _ = self._program.train_step
        if self._steps_per_execution > 1:
            self._program.train_steps(self._steps_per_execution)

    def _start_clock(self) -> None:
        self._log_missing_peak()
        self._throughput.start()

    def _summarize(self) -> None:
        step, self._to_summarize = self._to_summarize, None
        if step is None:
            return
        with self._error_context():
            metrics = self._train_metrics.since_summary(step)
        metrics |= self._rates()
        named = {f'train/{name}': value for name, value in metrics.items()}
        self._write(step, named)
        step_events.notify(step, named)

    def _rates(self) -> dict[str, float]:
        rates = self._throughput.rates()
        if 'tokens_per_second' in rates:
            flops = rates['tokens_per_second'] * self._costs['flops_per_token']
            mfu = device_peaks.utilization(flops, list(self._program.mesh.devices.flat))
            rates |= {} if mfu is None else {'mfu': mfu}
        return rates

    def _log_missing_peak(self) -> None:
        _ = self._costs  # Computed here, where nothing is timed yet.
        kind = self._program.mesh.devices.flat[0].device_kind
        if kind not in device_peaks.PEAKS:
            logging.info('train/mfu is left out: the peak FLOPs of %r are unknown', kind)

    @contextlib.contextmanager
    def _error_context(self) -> Iterator[None]:
        try:
            yield
        except NonFiniteLossError as error:
            raise error.located(self._saved) from error

    @during(CHECKPOINTS)
    def _save(self, step: int) -> None:
        if self._retention is None or (self._saved and self._saved[0] == step):
            return
        self._summarize()
        with self._error_context():
            # Raises before a state that is not finite replaces a finite one. This waits for
            # the steps in flight, while the clock runs.
            self._train_metrics.since_evaluation()
        spent = self._resources.to_json()
        with self._throughput.paused():
            if self._writer is not None:
                self._writer.flush()
            self._checkpoints.wait()  # No process begins a save after a failed one.
            progress = {
                **self._positions(step),
                'train_metrics': self._train_metrics.to_json(),
                'best': self._retention.to_json(),
                'spent': spent,
            }
            needed = first_unprocessed(self._job_log_dir) if processes.is_first() else None
            self._retention.needed = processes.broadcast(needed)
            path = self._checkpoints.save(step, self._run.state, progress)
        self._saved = (step, path)

    @during(EVALUATION)
    def _measure(self, step: int) -> Report:
        self._summarize()
        with self._error_context():
            train = self._train_metrics.since_evaluation()
        train |= processes.broadcast(self._rates())
        spent = self._resources.metrics(self._costs['flops_per_token'])
        self._rolling.start(step)
        with self._throughput.paused():
            running = self._experiment, self._program, self._run.state, self._values
            metrics = evaluate(*running)
            if self._loop.evaluation.train_batch:
                metrics |= evaluate_next(self._input, *running)
            decoding = self._loop.decoding
            if decoding and step >= decoding.start and self._is_due(step, decoding.every):
                metrics |= decode(*running, self._job_log_dir)
            self._write(step, metrics)
            metrics |= self._costs | spent
        metrics |= {f'train/{name}': value for name, value in train.items()}
        if self._retention is not None:
            self._retention.note(step, metrics)
        saved = self._saved[1] if self._saved and self._saved[0] == step else None
        is_last = step == self._loop.num_train_steps
        return Report(step, metrics, saved, self.resumed_from, is_last)

    def _write(self, step: int, metrics: dict[str, float]) -> None:
        if self._writer is not None:
            self._writer.write(step, metrics)

    @functools.cached_property
    @during(INITIALIZATION)
    def _costs(self) -> dict[str, float]:
        memory = float(self._program.device_memory_bytes())
        return static_costs(self._experiment) | {'device_memory_bytes': memory}
