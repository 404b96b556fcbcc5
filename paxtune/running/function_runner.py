import contextlib
import functools
import inspect
import operator
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyglove as pg

from paxtune.running import define_by_run
from paxtune.running.runner import Reports, Runner, Running
from paxtune.search_space.decisions import to_dna
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from trainer.loop.report import Interrupted, Report
from trainer.runtime.wall_clock import STEPS, during, phase
from trainer.symbolic.errors import UserError

_END = object()


class FunctionRunner(Runner):
    """Calls a function with the values of a trial, and with the trial where it takes that, too.

    The values are one argument. Where the space is a dict, and the function has a parameter for
    each of its keys, they are passed by name, and the trial to a parameter called `trial`. A
    function without parameters makes its decisions itself (`define_by_run`).

    The function returns a number, which becomes the metric `objective`, or metrics by name. Or it
    yields metrics, each a measurement at the next step, and the trial may be stopped in between. It
    may also yield (step, metrics): a paused or forked trial continues at the first of these steps
    (`Trial.continues_from`).
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)

    @classmethod
    def named(cls, name: str) -> 'FunctionRunner':
        """Imports the function of a name (`import_name`)."""
        return cls(pkgutil.resolve_name(name))

    @property
    def import_name(self) -> str | None:
        """The name by which another process imports the function; None where it cannot."""
        module, name = _place(self._function)
        found = None if module == '__main__' else sys.modules.get(module)
        with contextlib.suppress(AttributeError):
            same = getattr(found, '__spec__', None) and operator.attrgetter(name)(found)
            if same is self._function:
                return f'{module}:{name}'
        return None

    def worker_flags(self) -> list[str]:
        if self.import_name is None:
            raise UserError(
                f'workers are processes, which cannot import {_place(self._function)[1]}: put it '
                'at the top level of a module, or use engine=paxtune.Threads(…)'
            )
        return [f'--function={self.import_name}']

    def prepare(self, study: Study, trial: RunningTrial) -> Running:
        return functools.partial(self._run, study, trial)

    def _run(
        self, study: Study, trial: RunningTrial, should_interrupt: Callable[[], bool]
    ) -> Reports:
        returned = self._call(study, trial)
        if isinstance(returned, Iterator):
            step = 0
            for metrics in _timed(returned):
                step, metrics = _stepped(step, metrics)
                yield Report(step, _named(metrics))
                if should_interrupt():
                    raise Interrupted(step)
        elif returned is not None or not (trial.step or _inherited(study, trial)):
            yield Report(trial.step + 1, _named(returned), is_last=True)
        if not trial.step and (inherited := _inherited(study, trial)):
            yield inherited

    @during(STEPS)
    def _call(self, study: Study, trial: RunningTrial) -> Any:
        if not self._signature.parameters:
            spec = study.space.spec
            return define_by_run.call(self._function, spec, to_dna(spec, trial.view.by_id))
        arguments = self._arguments(trial)
        return self._function(*arguments.args, **arguments.kwargs)

    def _arguments(self, trial: RunningTrial) -> inspect.BoundArguments:
        values, parameters = trial.materialize(), self._signature.parameters
        if isinstance(values, pg.Dict) and set(values) <= set(parameters):
            named = {**({'trial': trial} if 'trial' in parameters else {}), **values}
            try:
                return self._signature.bind(**named)
            except TypeError:
                pass  # A parameter has another name, and so gets all values.
        required = [
            p
            for p in parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        ]
        return self._signature.bind(values, *([trial] if len(required) > 1 else []))


def _inherited(study: Study, trial: RunningTrial) -> Report | None:
    """The measurement that a fork begins with: its result if nothing is left to train."""
    parent, step = trial.lineage.forked_from or (None, 0)
    found = [each for each in study.trials if each.id == parent]
    measured = [each for trial in found for each in trial.measurements if each.step == step]
    is_new = bool(measured) and not trial.view.measurements
    return Report(step, measured[0].metrics, is_last=True) if is_new else None


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    name = getattr(function, '__qualname__', repr(function))
    return getattr(function, '__module__', None) or '', name


def _timed(yielded: Iterator[Any]) -> Iterator[Any]:
    """Yields the same values; measures the time between them as steps."""
    while True:
        with phase(STEPS):
            found = next(yielded, _END)
        if found is _END:
            return
        yield found


def _stepped(last: int, yielded: Any) -> tuple[int, Any]:
    if not isinstance(yielded, tuple):
        return last + 1, yielded
    if len(yielded) != 2 or not isinstance(yielded[0], int) or isinstance(yielded[0], bool):
        raise TypeError(f'the function must yield metrics, or (step, metrics), not {yielded!r}')
    step, metrics = yielded
    if step <= last:
        raise ValueError(f'the function yields step {step} after step {last}')
    return step, metrics


def _named(returned: Any) -> dict[str, float]:
    if isinstance(returned, Mapping):
        return {str(name): float(value) for name, value in returned.items()}
    try:
        return {'objective': float(returned)}
    except (TypeError, ValueError):
        raise TypeError(
            f'the function must return a number or metrics by name, not {returned!r}'
        ) from None
