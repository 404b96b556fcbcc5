"""The training loop: `run` yields what it measures and does not know who listens."""

import collections
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
from absl import logging
from etils import epath

from trainer import processes
from trainer.checkpoint import Checkpoints, Restored, load_params
from trainer.costs import static_costs
from trainer.derived import resolve
from trainer.directory import write_text
from trainer.errors import UserError
from trainer.evaluate import evaluate
from trainer.experiment import Experiment
from trainer.inputs.peek import Peekable
from trainer.metrics import Metrics, Totals
from trainer.rolling import Rolling
from trainer.serialization import to_json_text
from trainer.setup import compiled, localized, prepare_inputs
from trainer.signals import Signal
from trainer.speed import Speed
from trainer.state import TrainState
from trainer.summaries import Summaries
from trainer.warm_start import check_source, source_of


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What a run has to say after an evaluation.

    Attributes:
        step: optimizer steps done.
        metrics: `train/<metric>` since the last measurement, `<name>/<metric>` of each
            evaluation set, the costs of `trainer.costs`, and how fast it went
            (`trainer.speed.SPEEDS`), as far as there was anything to time: not in the first step
            of this process. Not finite where training diverged.
        checkpoint: the path of the checkpoint of this very step, where there is one.
        resumed_from: the step that this process started from; 0 for a fresh run.
    """

    step: int
    metrics: dict[str, float]
    checkpoint: str | None
    resumed_from: int


class NonFiniteLossError(FloatingPointError):
    """The training loss, or the norm of its gradients, became NaN or infinite."""


class Interrupted(Exception):
    """The run was asked to stop; its state up to `step` is in a checkpoint."""

    def __init__(self, step: int):
        super().__init__(f'interrupted at step {step}')
        self.step = step


def run(
    experiment: Experiment,
    job_log_dir: epath.PathLike,
    should_interrupt: Callable[[], bool] = lambda: False,
) -> Generator[Measurement, None, None]:
    """Trains an experiment, from its newest checkpoint in `job_log_dir` where there is one.

    Yields after each evaluation, the last of which follows the last step. A run that starts at a
    step where an evaluation is due repeats that evaluation, so no measurement is ever missing.
    Whoever listens may stop at any time by closing the generator.

    Of several processes (`trainer.processes`) all must run this, yield the same measurements, and
    end alike: all at the same step. The first writes what is not checkpoints.

    Args:
        experiment: what to train; every decision in it is made.
        job_log_dir: where experiment.json, metrics.jsonl, summaries/ and checkpoints/ are.
        should_interrupt: asked after every step; on True the run saves and raises. With several
            processes it is asked before the step, after which all of them save and raise.

    Raises:
        UserError: the experiment cannot run here (no data, a mesh that does not fit …).
        NonFiniteLossError: the training loss became NaN or infinite.
        Interrupted: `should_interrupt` said so.
        StopTrial, SkipTrial: code of the experiment said so.
        OtherProcessError, LostProcessError: another process failed, or is not there any more.
    """
    with (
        # What fails here ends the others, too: before they would wait for this one in a save, and
        # once more for what fails last.
        processes.together(),
        contextlib.closing(Training(experiment, epath.Path(job_log_dir))) as training,
        processes.together(),
    ):
        try:
            yield from training.measurements(should_interrupt)
        except Signal as signal:
            signal.step = training.step
            raise


class TrainMetrics:
    """Training metrics since the last summary, and since the last evaluation."""

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        """Starts anew, or from what `to_json` returned."""
        saved = saved or {}
        self._on_device: list[Metrics] = []
        self._since_summary = Totals(saved.get('since_summary'))
        self._since_evaluation = Totals(saved.get('since_evaluation'))

    def add(self, metrics: Metrics) -> None:
        """Adds the metrics of a step without waiting for it."""
        self._on_device.append(metrics)

    def since_summary(self) -> dict[str, float]:
        """The values since the last call."""
        self._fetch()
        totals, self._since_summary = self._since_summary, Totals()
        return totals.values()

    def since_evaluation(self) -> dict[str, float]:
        """The values since `start_interval`."""
        self._fetch()
        return self._since_evaluation.values()

    def start_interval(self) -> None:
        """Starts the interval that ends with the next evaluation.

        Not done by `since_evaluation`: an evaluation may be repeated after a restart.
        """
        self._fetch()
        self._since_evaluation = Totals()

    def to_json(self) -> dict[str, Any]:
        """What a resumed run needs in order to report the same values."""
        self._fetch()
        totals = {'summary': self._since_summary, 'evaluation': self._since_evaluation}
        return {f'since_{name}': total.to_json() for name, total in totals.items()}

    def _fetch(self) -> None:
        for metrics in jax.device_get(self._on_device):
            self._since_summary.add(metrics)
            self._since_evaluation.add(metrics)
        self._on_device = []


class Training:
    """One run: its program, its state, and where they are written."""

    def __init__(self, experiment: Experiment, job_log_dir: epath.Path):
        processes.require_joined()
        experiment = resolve(experiment)
        prepare_inputs(experiment)
        self._experiment = localized(experiment)
        self._loop = experiment.train
        self._input = Peekable(self._experiment.train_input)
        self._rolling = Rolling(self._experiment.eval_inputs)
        self._program, self._values = compiled(self._experiment)
        source = source_of(experiment, job_log_dir)
        if source is not None:
            check_source(source, self._program.abstract_state.params)
        self._key = self._program.random_key(self._loop.random_seed)
        self._train_metrics = TrainMetrics()
        self._speed = Speed()
        job_log_dir.mkdir(parents=True, exist_ok=True)
        processes.agree()  # Now all have what they need to begin.
        with contextlib.ExitStack() as opened:
            for data in (self._experiment.train_input, *self._experiment.eval_inputs.values()):
                opened.callback(data.close)
            path = job_log_dir / 'checkpoints'
            self._checkpoints = Checkpoints(path, self._loop.save_max_to_keep)
            opened.callback(self._checkpoints.close)
            self._saved: tuple[int, str] | None = None
            self._state, self.resumed_from = self._restore_or_init(source)
            self.step = self.resumed_from
            self._summaries: Summaries | None = None
            if processes.is_first():
                write_text(job_log_dir / 'experiment.json', to_json_text(experiment))
                self._summaries = Summaries(job_log_dir, self.resumed_from)
                opened.callback(self._summaries.close)
            self._opened = opened.pop_all()

    def measurements(self, should_interrupt: Callable[[], bool]) -> Iterator[Measurement]:
        """Trains to the last step."""
        if self.resumed_from and self._is_due(self.resumed_from, self._loop.eval_interval_steps):
            yield self._measure(self.resumed_from)
        max_in_flight = self._program.max_in_flight
        in_flight: collections.deque[Metrics] = collections.deque()
        leaving = _Leaving(should_interrupt)
        for step in range(self.resumed_from + 1, self._loop.num_train_steps + 1):
            in_flight.append(self._step(step, leaving))
            self.step = step
            if len(in_flight) > max_in_flight:
                jax.block_until_ready(in_flight.popleft())
            if self._is_due(step, self._loop.summary_interval_steps):
                self._summarize(step)
            if self._is_due(step, self._loop.save_interval_steps):
                self._save(step)
            if self._is_due(step, self._loop.eval_interval_steps):
                yield self._measure(step)
                self._speed.start()
            if leaving.after_step() and step < self._loop.num_train_steps:
                self._save(step)
                self._checkpoints.wait()
                raise Interrupted(step)
        self._checkpoints.wait()

    def close(self) -> None:
        """Finishes what is being written, unless it cannot be: another process was lost.

        Raises:
            SaveError: a save failed.
        """
        if not processes.is_lost():
            self._opened.close()

    def _restore_or_init(self, source: epath.Path | None) -> tuple[TrainState, int]:
        restored = self._checkpoints.restore(self._program.abstract_state)
        if restored is None and source is not None:
            params = load_params(source, self._program.abstract_state.params)
            logging.info('Took the parameters of %s', source)
            return self._program.init_from(params, self._key, self._values), 0
        if restored is None:
            return self._program.init(self._key, self._values), 0
        self._input.set_position(self._own_position(restored))
        self._rolling.resume(restored.progress)
        self._train_metrics = TrainMetrics(restored.progress['train_metrics'])
        self._saved = (restored.step, restored.path)
        logging.info('Resumed from step %d', restored.step)
        return restored.state, restored.step

    def _positions(self, step: int) -> dict[str, Any]:
        found = processes.gather(self._input.get_position())
        positions = {'position': found[0]} if len(found) == 1 else {'positions': found}
        if self._rolling.inputs:
            positions[Rolling.KEY] = processes.gather(self._rolling.positions(step))
        return positions

    def _own_position(self, restored: Restored) -> dict[str, Any]:
        progress = restored.progress
        positions = progress['positions'] if 'positions' in progress else [progress['position']]
        if len(positions) != processes.count():
            raise UserError(
                f'{restored.path} was written by {len(positions)} processes, each with its own '
                f'share of the data, and now there are {processes.count()}: start as many as then, '
                'or start anew in another --job_log_dir'
            )
        return positions[processes.index()]

    def _is_due(self, step: int, interval: int) -> bool:
        return step % interval == 0 or step == self._loop.num_train_steps

    def _step(self, step: int, leaving: '_Leaving') -> Metrics:
        if self._is_due(step - 1, self._loop.eval_interval_steps):
            self._train_metrics.start_interval()
        batch = self._program.put(self._input.get_next_padded())
        train_step = self._program.train_step
        leaving.before_step()
        self._state, metrics = train_step(self._state, batch, self._key, self._values)
        self._train_metrics.add(metrics)
        if step == self.resumed_from + 1:
            jax.block_until_ready(metrics)  # Compiled and warm; what follows is the step's own.
            self._speed.start()
        else:
            self._speed.count(self._experiment.task.num_tokens(batch))
        return metrics

    def _summarize(self, step: int) -> None:
        metrics = self._train_metrics.since_summary()
        _check_finite(step, metrics)
        metrics |= self._speed.rates()
        self._write(step, {f'train/{name}': value for name, value in metrics.items()})

    def _save(self, step: int) -> None:
        if self._saved is not None and self._saved[0] == step:
            return
        with self._speed.paused():
            # A state that is not finite must not take the place of one that is.
            _check_finite(step, self._train_metrics.since_evaluation())
            if self._summaries is not None:
                self._summaries.flush()
            self._checkpoints.wait()  # So that no process begins a save while another's failed.
            progress = {
                **self._positions(step),
                'train_metrics': self._train_metrics.to_json(),
            }
            path = self._checkpoints.save(step, self._state, progress)
        self._saved = (step, path)

    def _measure(self, step: int) -> Measurement:
        train = self._train_metrics.since_evaluation()
        _check_finite(step, train)
        train |= processes.broadcast(self._speed.rates())
        self._rolling.start(step)
        with self._speed.paused():
            metrics = evaluate(self._experiment, self._program, self._state, self._values)
            self._write(step, metrics)
            metrics |= self._costs
        metrics |= {f'train/{name}': value for name, value in train.items()}
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

    def before_step(self) -> None:
        """Of several processes, makes sure that all are about to do the step, and agrees."""
        # One round a step: with it no process can be alone in a step, where it would wait for ever.
        if processes.count() > 1:
            self._agreed = processes.agree(self._should_interrupt())

    def after_step(self) -> bool:
        """What was agreed. One process asks only now."""
        return self._agreed if processes.count() > 1 else self._should_interrupt()


def _check_finite(step: int, metrics: dict[str, float]) -> None:
    # The loss is that of the parameters before the step, the gradients make those after it.
    for name, what in (('loss', 'training loss'), ('gradient_norm', 'norm of the gradients')):
        value = metrics.get(name, 0.0)
        if not math.isfinite(value):
            raise NonFiniteLossError(f'the {what} is {value} at step {step}')
