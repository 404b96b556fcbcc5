"""The training loop: `run` trains an experiment and yields a report after each evaluation."""

import collections
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
from absl import logging
from etils import epath

from trainer.checkpoints import end_marker
from trainer.checkpoints.checkpoint_watcher import first_unprocessed
from trainer.checkpoints.manifest import Progress
from trainer.experiment import Experiment
from trainer.loop import odd_batches
from trainer.loop.decode_loop import decode
from trainer.loop.evaluate import evaluate, evaluate_next
from trainer.loop.executions import executions, is_due
from trainer.loop.interrupt_policy import InterruptPolicy
from trainer.loop.meter import Meter
from trainer.loop.open_run import PreparedRun, Run, open_run, prepare_run
from trainer.loop.report import Interrupted, Report
from trainer.metrics import Metrics, with_nan
from trainer.program.packing.place import Alone
from trainer.runtime import processes, step_events
from trainer.runtime.directory import job_path
from trainer.runtime.profiling import Profiler
from trainer.runtime.signals import Signal
from trainer.runtime.wall_clock import (
    CHECKPOINTS,
    EVALUATION,
    INPUT,
    STEPS,
    during,
    keep,
    phase,
)
from trainer.symbolic.errors import NonFiniteLossError


def run(
    experiment: Experiment,
    job_log_dir: epath.PathLike,
    should_interrupt: Callable[[], bool] = lambda: False,
    profiler: Profiler | None = None,
    allow_changes: bool = False,
    place: Alone | None = None,
) -> Generator[Report, None, None]:
    """Prepares a run and trains it, from its newest checkpoint in `job_log_dir` if there is one.

    Args:
        experiment: the experiment to train, without open decisions.
        job_log_dir: directory of experiment.json, metrics.jsonl, summaries/ and checkpoints/.
        should_interrupt: as for `train`.
        profiler: as for `train`.
        allow_changes: as for `prepare_run`.
        place: as for `train`.

    Raises:
        UserError: the experiment cannot run here (no data, a mesh that does not fit …).
        Exception: as `train`.
    """
    job_log_dir = job_path(job_log_dir)
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
        prepared: the run, and its directory.
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
        # A failure here ends all processes, before they wait for this one in a save.
        # The inner `together` covers the steps, the outer one the closing.
        processes.together(),
        end_marker.marks_end(prepared.job_log_dir) as marker,
        open_run(prepared, profiler, place) as run,
        processes.together(),
    ):
        marker.step = run.resumed_from
        try:
            yield from _reports(run, InterruptPolicy(should_interrupt), marker)
        except NonFiniteLossError as error:
            number = error.step - run.resumed_from
            data, task = run.experiment.train_input, run.experiment.task
            reason = odd_batches.in_training(data, task, run.inputs.start, number)
            raise error.located(run.checkpoints.last, reason) from error
        except Signal as signal:
            signal.step = marker.step
            raise


def _reports(
    run: Run, interrupt: InterruptPolicy, marker: end_marker.EndMarker
) -> Iterator[Report]:
    """Trains to the last step. The order of operations determines which a resumed run repeats."""
    loop, resumed_from, last = run.loop, run.resumed_from, run.loop.num_train_steps
    # To read a field of a component takes microseconds, which no step has to spare.
    measures, summarizes = loop.evaluation.every, loop.summary_interval_steps
    saves, max_in_flight = loop.checkpoints and loop.checkpoints.every, run.max_in_flight
    saves_locally = loop.local_checkpoints and loop.local_checkpoints.every
    if resumed_from < last:
        run.compile()  # All processes agree on the steps after that.
    meter, in_flight = Meter(run), collections.deque[Metrics]()
    if resumed_from and is_due(resumed_from, measures, last):
        yield _measured(run, meter, resumed_from)
        if interrupt.before_training() and resumed_from < last:
            raise Interrupted(resumed_from)  # Nothing is new since that checkpoint.
    for steps in executions(resumed_from + 1, last, run.steps_per_execution, loop.intervals):
        in_flight.append(_execute(run, meter, interrupt, steps))
        marker.step = step = steps[-1]
        step_events.notify(step)
        if len(in_flight) > max_in_flight:
            with phase(STEPS):
                jax.block_until_ready(in_flight.popleft())
        run.garbage.after(step)
        if is_due(step, summarizes, last):
            meter.due = step
        if saves and is_due(step, saves, last):
            _save(run, meter, step)
        if saves_locally and step % saves_locally == 0 and step < last:
            _save_locally(run, meter, step)
        if has_reported := is_due(step, measures, last):
            report = _measured(run, meter, step)
            with meter.throughput.paused():
                yield report
            meter.throughput.start()
        if interrupt.after_steps(steps, has_reported) and step < last:
            _save(run, meter, step)
            run.checkpoints.wait()
            raise Interrupted(step)
    meter.summarize()
    run.checkpoints.wait()


@during(STEPS)
def _execute(run: Run, meter: Meter, interrupt: InterruptPolicy, steps: range) -> Metrics:
    with phase(INPUT):
        batch = run.program.put(*(run.inputs.train.get_next_padded() for _ in steps))
    interrupt.before_steps(steps)
    meter.before(steps)
    run.profiler.before(steps, run.job_log_dir)
    metrics = run.stepper.step(batch, len(steps))
    run.profiler.after(steps, metrics)
    meter.summarize()  # Writes an earlier step, while this one runs.
    meter.after(steps, metrics)
    return metrics


@during(EVALUATION)
def _measured(run: Run, meter: Meter, step: int) -> Report:
    train, spent = meter.since_evaluation(), meter.spent()
    run.inputs.start_evaluation(step)
    with meter.throughput.paused():
        running = run.experiment, run.program, run.stepper.state, run.stepper.values
        found = evaluate(*running)
        if run.loop.evaluation.train_batch:
            found |= evaluate_next(run.inputs.train, *running)
        decoding, last = run.loop.decoding, run.loop.num_train_steps
        if decoding and step >= decoding.start and is_due(step, decoding.every, last):
            found |= decode(*running, run.job_log_dir)
        if not run.inputs.has_warned:
            run.inputs.has_warned = odd_batches.has_warned(run.experiment, found)
        run.write(step, {name: each for name, each in found.items() if each is not None})
    found |= meter.costs | spent | {f'train/{name}': value for name, value in train.items()}
    metrics, undefined = with_nan(found), {name for name in found if found[name] is None}
    if run.checkpoints.retention is not None:
        run.checkpoints.retention.note(step, metrics)
    path, is_last = run.checkpoints.path_of(step), step >= run.loop.num_train_steps
    return Report(step, metrics, path, run.resumed_from, is_last, frozenset(undefined))


@during(CHECKPOINTS)
def _save(run: Run, meter: Meter, step: int) -> None:
    """Saves a step whose state is finite, unless it is saved or the run saves none."""
    retention = run.checkpoints.retention
    if retention is None or run.checkpoints.path_of(step) is not None:
        return
    summed = meter.to_json()
    with meter.throughput.paused():
        run.checkpoints.wait()  # No process begins a save after a failed one.
        progress = _progress(run, step, *summed)
        needed = first_unprocessed(run.job_log_dir) if processes.is_first() else None
        retention.needed = processes.broadcast(needed)
        run.checkpoints.save(step, run.stepper.state, progress)
        keep()


@during(CHECKPOINTS)
def _save_locally(run: Run, meter: Meter, step: int) -> None:
    """Saves a step whose state is finite on each host; a failure is a warning."""
    assert run.local is not None
    summed = meter.to_json()
    with meter.throughput.paused():
        run.local.save(step, run.stepper.state, _progress(run, step, *summed))
        keep()


def _progress(
    run: Run, step: int, train_metrics: dict[str, Any], spent: dict[str, float]
) -> Progress:
    """The progress at a step, with all metrics before it on disk."""
    retention = run.checkpoints.retention
    assert retention is not None
    if run.writer is not None:
        run.writer.flush()
    positions = run.inputs.positions(step)
    return Progress(*positions, train_metrics, retention.to_json(), spent)
