"""Functions that make their decisions themselves (PyGlove's define-by-run)."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pyglove as pg

from paxtune.running.function_arguments import name_of
from paxtune.running.trial_errors import ExitError, ends_as_errors, reason_of
from paxtune.search_space.decisions import decision_points
from trainer.runtime.interrupt import noted_ctrl_c
from trainer.runtime.signals import Signal
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

_CONDITIONAL = (
    'The first run made other decisions: write a decision that depends on another as '
    'pg.oneof([lambda: pg.floatv(0.0, 1.0, name="x"), …]), not inside an if'
)


def traced(function: Callable[[], Any]) -> pg.Dict:
    """Runs a function once, with the first values of its decisions, and collects these by name.

    A generator runs to its first `yield`. Decisions without a name are `decision_0` and so on.
    """
    context = pg.hyper.DynamicEvaluationContext()
    # A trial with these decisions would end with the signal.
    with context.collect() as decisions, contextlib.suppress(Signal), noted_ctrl_c():
        try:
            with ends_as_errors():
                returned = _begun(function)
            if isinstance(returned, Component):
                name = name_of(function)
                raise UserError(f'what: {name} returns a {type(returned).__name__}: write {name}()')
        except ExitError as error:
            raise UserError(
                'the first run of the function, which finds its decisions, ended with '
                f'{reason_of(error)}'
            ) from error
    return pg.Dict(decisions)


def require_own(function: Callable[[], Any], space: pg.Dict | pg.Object) -> None:
    """Raises UserError unless a function without parameters makes the decisions of a space."""
    own, given = list(traced(function)), list(map(str, space.sym_keys()))
    if {*own} != {*given}:
        made = f'the decisions {", ".join(own)}' if own else 'no decision'
        raise UserError(
            f'{name_of(function)} has no parameters and makes {made}, and the space has '
            f'{", ".join(given)}: give it parameters with the names of the space, or pass no space'
        )


def call(function: Callable[[], Any], spec: pg.DNASpec, dna: pg.DNA) -> Any:
    """Calls a function with decisions made; a generator begins.

    Raises:
        ValueError: the function makes other decisions than in its traced run.
    """
    is_named = all(point.name for point in decision_points(spec))
    context = pg.hyper.DynamicEvaluationContext(require_hyper_name=is_named, dna_spec=spec)
    is_called = False
    try:
        with context.apply(dna):
            returned = _begun(function)
            is_called = True
    except ValueError as error:
        if is_called:  # Else it may be the function's own error.
            raise ValueError(f'{error}. {_CONDITIONAL}') from None
        raise
    return returned


def _begun(function: Callable[[], Any]) -> Any:
    returned = function()
    if not isinstance(returned, Iterator):
        return returned
    return _continued(list(itertools.islice(returned, 1)), returned)


def _continued(begun: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from begun
        yield from rest
    finally:
        getattr(rest, 'close', lambda: None)()
