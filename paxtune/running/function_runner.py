import contextlib
import functools
import inspect
import json
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import logging

from paxtune.objectives.measurement import as_number, as_step, in_words
from paxtune.running import define_by_run, import_names
from paxtune.running.function_arguments import bound, keys_of, signature_of
from paxtune.running.import_names import NotImportableError
from paxtune.running.runner import Reports, Runner, Running
from paxtune.running.trial_errors import ends_as_errors, reason_of
from paxtune.running.worker_arguments import WorkerArguments
from paxtune.search_space.decisions import to_dna
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from trainer.loop.report import Interrupted, Report
from trainer.runtime.wall_clock import STEPS, during, phase
from trainer.symbolic.errors import UserError
from trainer.symbolic.user_code import place_of

_END = object()
_metrics = operator.attrgetter('metrics')


class FunctionRunner(Runner):
    """Calls a function with the values of a trial, and with the trial where it takes that, too.

    The values are one argument. They are passed by name where the space is a dict, and the function
    has a parameter for each of its keys or takes `**config`. A parameter called `trial` gets the
    trial. A function without parameters makes its decisions itself (`define_by_run`).

    The function returns a number, which becomes the metric `objective`, or metrics by name. Or it
    yields metrics, each a measurement at the next step, and the trial may be stopped in between. It
    may also yield (step, metrics), from step 0 or 1: a paused or forked trial continues at the
    first of these steps (`Trial.continues_from`).
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._has_arguments = bool(signature_of(function).parameters)

    def worker_arguments(self, definition: str) -> WorkerArguments:
        try:
            name = import_names.import_name(self._function)
        except NotImportableError as error:
            raise UserError(f'workers are processes: {error}. Or use paxtune.Threads(…)') from None
        is_of_script = import_names.is_of_script(self._function)
        argv = json.dumps(sys.argv) if is_of_script else ''
        return WorkerArguments(definition, function=name, argv=argv)

    @property
    def why_not_in_workers(self) -> str | None:
        """The reason why other processes cannot call the function; None if they can."""
        try:
            import_names.import_name(self._function)
        except NotImportableError as error:
            return str(error)
        return None

    def prepare(self, study: Study, trial: RunningTrial) -> Running:
        return functools.partial(self._run, study, trial)

    def _run(
        self, study: Study, trial: RunningTrial, should_interrupt: Callable[[], bool]
    ) -> Reports:
        returned = self._call(study, trial)
        if isinstance(returned, Iterator):
            step = -1
            with _closed(returned, trial):
                for yielded in _timed(returned):
                    with self._placed(returned):
                        step, metrics = _stepped(step, yielded)
                    yield Report(step, metrics)
                    if should_interrupt():
                        raise Interrupted(step)
        elif returned is not None or not (trial.has_reported or _inherited(study, trial)):
            with self._placed(returned):
                metrics = _named(returned)
            yield Report(trial.step + 1, metrics, is_last=True)
        if not trial.has_reported and (inherited := _inherited(study, trial)):
            yield inherited
        elif not (trial.view.record.non_finite or any(map(_metrics, trial.view.measurements))):
            with self._placed(returned):
                what = 'gave no metric' if trial.view.measurements else 'yielded nothing'
                raise UserError(f'nothing was measured: the function {what}')

    @during(STEPS)
    def _call(self, study: Study, trial: RunningTrial) -> Any:
        if not self._has_arguments:
            spec = study.space.spec
            with ends_as_errors():
                return define_by_run.call(self._function, spec, to_dna(spec, trial.view.by_id))
        values = trial.materialize()
        arguments = bound(self._function, values, keys_of(values, self._function), trial)
        with ends_as_errors():
            return self._function(*arguments.args, **arguments.kwargs)

    @contextlib.contextmanager
    def _placed(self, returned: Any) -> Iterator[None]:
        """Adds to an error of results the place of the `yield`, or the place of the function."""
        try:
            yield
        except UserError as error:
            frame = getattr(returned, 'gi_frame', None)
            place = place_of(self._function, frame and frame.f_lineno)
            raise UserError(f'{error} ({place})' if place else str(error)) from None


def _inherited(study: Study, trial: RunningTrial) -> Report | None:
    """The measurement that a fork begins with: its result if nothing is left to train."""
    parent, step = trial.lineage.forked_from or (None, 0)
    found = [each for each in study.trials if each.id == parent]
    measured = [each for trial in found for each in trial.measurements if each.step == step]
    is_new = bool(measured) and not trial.view.measurements
    return Report(step, measured[0].metrics, is_last=True) if is_new else None


def _timed(yielded: Iterator[Any]) -> Iterator[Any]:
    """Yields the same values; measures the time between them as steps."""
    while True:
        with phase(STEPS), ends_as_errors():
            found = next(yielded, _END)
        if found is _END:
            return
        yield found


@contextlib.contextmanager
def _closed(yielded: Iterator[Any], trial: RunningTrial) -> Iterator[None]:
    """Closes a generator at the end. An error that it raises then is not that of its trial."""
    try:
        yield
    finally:
        try:
            with ends_as_errors():
                getattr(yielded, 'close', lambda: None)()
        except Exception as error:
            logging.warning(
                'Trial %d: its function raised as it was closed: %s', trial.id, reason_of(error)
            )


def _stepped(last: int, yielded: Any) -> tuple[int, dict[str, float]]:
    if not isinstance(yielded, tuple):
        return max(last, 0) + 1, _named(yielded)
    try:
        step, metrics = yielded
        step = as_step(step)
    except (UserError, ValueError):
        pair = '(step, metrics), whose step is an integer from 0'
        raise UserError(
            f'the function must yield metrics, or {pair}, not {in_words(yielded)}'
        ) from None
    if step <= last:
        raise UserError(f'the function yields step {step} after step {last}: steps must grow')
    return step, _named(metrics)


def _named(returned: Any) -> dict[str, float]:
    if isinstance(returned, Mapping):
        return {str(name): as_number(str(name), value) for name, value in returned.items()}
    try:
        return {'objective': as_number('objective', returned)}
    except UserError:
        if inspect.iscoroutine(returned):
            returned.close()
        raise UserError(
            f'the function must return a number or metrics by name, not {in_words(returned)}'
        ) from None
