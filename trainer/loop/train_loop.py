"""The training loop: `run` yields what it measures and does not know who listens."""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
from absl import logging
from etils import epath

from trainer.checkpoints.checkpoint import CheckpointStore, Restored
from trainer.checkpoints.checkpoint_follower import first_needed
from trainer.checkpoints.retention import RetentionPolicy
from trainer.checkpoints.warm_start import WarmStarted, sources_of
from trainer.experiment import Experiment
from trainer.inputs.peek import Peekable
from trainer.loop import end_marker
from trainer.loop.decode_loop import decode
from trainer.loop.evaluate import evaluate, evaluate_next
from trainer.loop.resource_counters import Spending
from trainer.loop.rolling_eval import Rolling, by_share
from trainer.loop.train_metrics import NonFiniteLossError, TrainMetrics
from trainer.metrics import Metrics
from trainer.program import device_peaks
from trainer.program.costs import static_costs
from trainer.program.setup import compiled, inputs_by_path, localized, prepare_inputs
from trainer.runtime import processes
from trainer.runtime.directory import write_text
from trainer.runtime.garbage_collection import GarbageCollection
from trainer.runtime.metric_writer import Summaries
from trainer.runtime.profiling import Profiler
from trainer.runtime.signals import Signal
from trainer.runtime.throughput import Speed
from trainer.state import TrainState
from trainer.symbolic.derived import resolve
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import to_json_text


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What a run has to say after an evaluation.

    Attributes:
        step: optimizer steps done.
        metrics: `train/<metric>` since the last measurement, `<name>/<metric>` of each
            evaluation set, `decode_<name>/<metric>` of each decode set, `eval_train/<metric>`
            where the loop is to measure it, the costs of `trainer.program.costs`, what was
            spent since step 0 (`loop.resource_counters`), and how fast it went
            (`throughput.SPEEDS`), as far as there was anything to time: not in the first step
            of this process. Not finite where training diverged.
        checkpoint: the path of the checkpoint of this very step, where there is one.
        resumed_from: the step that this process started from; 0 for a fresh run.
    """

    step: int
    metrics: dict[str, float]
    checkpoint: str | None
    resumed_from: int


class Interrupted(Exception):
    """The run was asked to stop; its state up to `step` is in a checkpoint, if any are saved."""

    def __init__(self, step: int):
        super().__init__(f'interrupted at step {step}')
        self.step = step


def run(
    experiment: Experiment,
    job_log_dir: epath.PathLike,
    should_interrupt: Callable[[], bool] = lambda: False,
    profiler: Profiler | None = None,
) -> Generator[Measurement, None, None]:
    """Trains an experiment, from its newest checkpoint in `job_log_dir` where there is one.

    Yields after each evaluation, the last of which follows the last step. A run that starts at a
    step where an evaluation is due repeats that evaluation, so no measurement is ever missing.
    Whoever listens may stop at any time by closing the generator.

    Of several processes (`runtime.processes`) all must run this, yield the same measurements, and
    end alike: all at the same step. The first writes what is not checkpoints.

    Args:
        experiment: what to train; every decision in it is made.
        job_log_dir: where experiment.json, metrics.jsonl, summaries/ and checkpoints/ are.
        should_interrupt: asked after every step, and after the measurement of that step where
            there is one; on True the run saves that very step and raises. With several processes
            it is asked before the step, after which all of them save and raise, and once more
            after a measurement.
        profiler: profiles some steps.

    Raises:
        UserError: the experiment cannot run here (no data, a mesh that does not fit …).
        NonFiniteLossError: the training loss became NaN or infinite.
        Interrupted: `should_interrupt` said so, or JAX's preemption notice came.
        StopTrial, SkipTrial: code of the experiment said so.
        OtherProcessError, LostProcessError: another process failed, or is not there any more.
    """
    with (
        # What fails here ends the others, too: before they would wait for this one in a save, and
        # once more for what fails last.
        processes.together(),
        end_marker.marked(job_log_dir) as marked,
        contextlib.closing(Training(experiment, epath.Path(job_log_dir), profiler)) as training,
        processes.together(),
    ):
        try:
            yield from training.measurements(should_interrupt)
        except Signal as signal:
            signal.step = training.step
            raise
        finally:
            marked.step = training.step


class Training:
    """One run: its program, its state, and where they are written."""

    def __init__(
        self, experiment: Experiment, job_log_dir: epath.Path, profiler: Profiler | None = None
    ) -> None:
        self._profiler, self._job_log_dir = profiler, job_log_dir
        processes.require_joined()
        experiment = resolve(experiment)
        prepare_inputs(experiment)
        self._experiment = localized(experiment)
        self._loop = experiment.train
        self._input = Peekable(self._experiment.train_input)
        self._rolling = Rolling(inputs_by_path(self._experiment))
        self._program, self._values = compiled(self._experiment)
        sources = sources_of(experiment, job_log_dir)
        warm = WarmStarted(experiment, sources, self._program) if sources else None
        self._key = self._program.random_key(self._loop.random_seed)
        self._train_metrics = TrainMetrics()
        self._speed = Speed()
        self._spending = Spending(self._speed)
        self._to_summarize: int | None = None  # A step whose metrics are written once it is done.
        job_log_dir.mkdir(parents=True, exist_ok=True)
        processes.agree()  # Now all have what they need to begin.
        end_marker.unmark(job_log_dir)
        with contextlib.ExitStack() as opened:
            for data in inputs_by_path(self._experiment).values():
                opened.callback(data.close)
            self._garbage = opened.enter_context(GarbageCollection(self._loop.gc_interval_steps))
            path = job_log_dir / 'checkpoints'
            checkpoints = self._loop.checkpoints
            self._retention = None if checkpoints is None else RetentionPolicy(checkpoints)
            self._checkpoints = CheckpointStore(path, self._retention)
            opened.callback(self._checkpoints.close)
            self._saved: tuple[int, str] | None = None
            self._state, self.resumed_from = self._restore_or_init(warm)
            self.step = self.resumed_from
            self._summaries: Summaries | None = None
            if processes.is_first():
                write_text(job_log_dir / 'experiment.json', to_json_text(experiment))
                self._summaries = Summaries(job_log_dir, self.resumed_from)
                opened.callback(self._summaries.close)
            if profiler is not None:
                opened.callback(profiler.close)
            self._opened = opened.pop_all()

    def measurements(self, should_interrupt: Callable[[], bool]) -> Iterator[Measurement]:
        """Trains to the last step."""
        leaving = _Leaving(should_interrupt)
        if self.resumed_from and self._is_due(self.resumed_from, self._loop.evaluation.every):
            yield self._measure(self.resumed_from)
            if leaving.before_training() and self.resumed_from < self._loop.num_train_steps:
                raise Interrupted(self.resumed_from)  # Nothing is new since that checkpoint.
        max_in_flight = min(self._program.max_in_flight, self._loop.max_inflight_steps)
        in_flight: collections.deque[Metrics] = collections.deque()
        saving = self._loop.checkpoints
        for step in range(self.resumed_from + 1, self._loop.num_train_steps + 1):
            in_flight.append(self._step(step, leaving))
            self.step = step
            if len(in_flight) > max_in_flight:
                jax.block_until_ready(in_flight.popleft())
            self._garbage.after(step)
            if self._is_due(step, self._loop.summary_interval_steps):
                self._to_summarize = step
            if saving is not None and self._is_due(step, saving.every):
                self._save(step)
            is_measured = self._is_due(step, self._loop.evaluation.every)
            if is_measured:
                measurement = self._measure(step)
                with self._speed.paused():
                    yield measurement
                self._speed.start()
            if leaving.after_step(step, is_measured) and step < self._loop.num_train_steps:
                self._save(step)
                self._checkpoints.wait()
                raise Interrupted(step)
        self._summarize()
        self._checkpoints.wait()

    def close(self) -> None:
        """Finishes what is being written, unless it cannot be: another process was lost.

        Raises:
            SaveError: a save failed.
        """
        if not processes.is_lost():
            self._opened.close()

    def _restore_or_init(self, warm: WarmStarted | None) -> tuple[TrainState, int]:
        restored = self._checkpoints.restore(self._program.abstract_state)
        if restored is None and warm is not None:
            state = warm.load(self._key, self._values)
            warm.tell(self._job_log_dir)
            self._spending = Spending(self._speed, warm.spent())
            return state, int(state.step)
        if restored is None:
            return self._program.init(self._key, self._values), 0
        self._input.set_position(self._own_position(restored))
        self._rolling.resume(restored.progress, self._program.infeed_share)
        self._train_metrics = TrainMetrics(restored.progress['train_metrics'])
        if self._retention is not None:
            self._retention.from_json(restored.progress['best'])
        self._spending = Spending(self._speed, restored.progress['spent'])
        self._saved = (restored.step, restored.path)
        logging.info('Resumed from step %d', restored.step)
        return restored.state, restored.step

    def _positions(self, step: int) -> dict[str, Any]:
        share = self._program.infeed_share[1]
        found = by_share(processes.gather([share, self._input.get_position()]))
        positions: dict[str, Any] = {'positions': found}
        if self._rolling.inputs:
            rolling = processes.gather([share, self._rolling.positions(step)])
            positions[Rolling.KEY] = by_share(rolling)
        return positions

    def _own_position(self, restored: Restored) -> dict[str, Any]:
        """The position of this process in its training data, in a run that goes on."""
        positions: list[dict[str, Any]] = restored.progress['positions']
        count, index = self._program.infeed_share
        if len(positions) == count:
            return positions[index]
        inputs = {'train_input': self._experiment.train_input}
        inputs |= self._rolling.inputs
        for path, data in inputs.items():
            if not data.positions_are_global:
                raise UserError(
                    f'{path}: {restored.path} was written by {len(positions)} processes with '
                    f'shares of the data of their own, and now there are {count}. In '
                    f'{type(data).__name__} a position holds for the share that it was taken in '
                    'alone: start as many processes as then, or start anew in another '
                    '--job_log_dir'
                )
        return positions[0]  # All are the same.

    def _is_due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self._loop.num_train_steps

    def _step(self, step: int, leaving: '_Leaving') -> Metrics:
        if self._is_due(step - 1, self._loop.evaluation.every):
            self._train_metrics.start_interval()
        batch = self._program.put(self._input.get_next_padded())
        train_step = self._program.train_step
        leaving.before_step(step)
        if self._profiler is not None:
            self._profiler.before(step, self._job_log_dir)
        with jax.transfer_guard('disallow'):  # Nothing that nobody sees waits for the host.
            self._state, metrics = train_step(self._state, batch, self._key, self._values)
        if self._profiler is not None:
            self._profiler.after(step, metrics)
        self._summarize()  # That of an earlier step, while this one is under way.
        self._train_metrics.add(step, metrics)
        tokens = self._experiment.task.num_tokens(batch)
        self._spending.count(tokens)
        if step == self.resumed_from + 1:
            jax.block_until_ready(metrics)  # Compiled and warm; what follows is the step's own.
            self._tell_of_peak()
            self._speed.start()
        else:
            self._speed.count(tokens)
        return metrics

    def _summarize(self) -> None:
        """Writes the metrics of the step that is due, once it has been done."""
        step, self._to_summarize = self._to_summarize, None
        if step is None:
            return
        with self._telling_where():
            metrics = self._train_metrics.since_summary(step)
        metrics |= self._rates()
        self._write(step, {f'train/{name}': value for name, value in metrics.items()})

    def _rates(self) -> dict[str, float]:
        """How fast it goes, and how much of what the devices can do it uses."""
        rates = self._speed.rates()
        if 'tokens_per_second' in rates:
            flops = rates['tokens_per_second'] * self._costs['flops_per_token']
            mfu = device_peaks.utilization(flops, list(self._program.mesh.devices.flat))
            rates |= {} if mfu is None else {'mfu': mfu}
        return rates

    def _tell_of_peak(self) -> None:
        _ = self._costs  # To know them takes a moment, in which nothing is timed yet.
        kind = self._program.mesh.devices.flat[0].device_kind
        if kind not in device_peaks.PEAKS:
            logging.info('train/mfu is left out: what %r can do is not known', kind)

    @contextlib.contextmanager
    def _telling_where(self) -> Iterator[None]:
        """Around what finds that the loss is not finite: adds what is needed to look into it."""
        try:
            yield
        except NonFiniteLossError as error:
            raise error.located(self._saved) from error

    def _save(self, step: int) -> None:
        if self._retention is None or (self._saved and self._saved[0] == step):
            return
        self._summarize()
        with self._telling_where():
            # A state that is not finite must not take the place of one that is. The steps that are
            # still under way are waited for here, while the clock runs.
            self._train_metrics.since_evaluation()
        spent = self._spending.to_json()
        with self._speed.paused():
            if self._summaries is not None:
                self._summaries.flush()
            self._checkpoints.wait()  # So that no process begins a save while another's failed.
            progress = {
                **self._positions(step),
                'train_metrics': self._train_metrics.to_json(),
                'best': self._retention.to_json(),
                'spent': spent,
            }
            needed = first_needed(self._job_log_dir) if processes.is_first() else None
            self._retention.needed = processes.broadcast(needed)
            path = self._checkpoints.save(step, self._state, progress)
        self._saved = (step, path)

    def _measure(self, step: int) -> Measurement:
        self._summarize()
        with self._telling_where():
            train = self._train_metrics.since_evaluation()
        train |= processes.broadcast(self._rates())
        spent = self._spending.metrics(self._costs['flops_per_token'])
        self._rolling.start(step)
        with self._speed.paused():
            running = self._experiment, self._program, self._state, self._values
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
        return Measurement(step, metrics, saved, self.resumed_from)

    def _write(self, step: int, metrics: dict[str, float]) -> None:
        if self._summaries is not None:
            self._summaries.write(step, metrics)

    @functools.cached_property
    def _costs(self) -> dict[str, float]:
        memory = float(self._program.device_memory_bytes())
        return static_costs(self._experiment) | {'device_memory_bytes': memory}


class _Leaving:
    """Whether to leave after the step that is under way."""

    def __init__(self, should_interrupt: Callable[[], bool]) -> None:
        self._should_interrupt = should_interrupt
        self._agreed = False

    def before_step(self, step: int) -> None:
        """Of several processes, makes sure that all are about to do the step, and agrees."""
        # One round a step: with it no process can be alone in a step, where it would wait for ever.
        if processes.count() > 1:
            self._agreed = processes.agree(self._asked(step))

    def after_step(self, step: int, is_measured: bool) -> bool:
        """What was agreed. One process asks only now."""
        if processes.count() == 1:
            return self._asked(step)
        if is_measured:  # Whoever heard the measurement may have had enough.
            self._agreed = processes.agree(self._agreed or self._should_interrupt())
        return self._agreed

    def before_training(self) -> bool:
        """Whether whoever heard the measurement of the step that was resumed from has enough."""
        return processes.agree(self._should_interrupt())

    def _asked(self, step: int) -> bool:
        is_preempted = processes.is_preempted(step)  # At every step: JAX counts along.
        return self._should_interrupt() or is_preempted
