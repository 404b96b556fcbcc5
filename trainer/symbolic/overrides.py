"""Overrides of an experiment by path: `--set`, `--tune`, `--smoke`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import pyglove as pg

from trainer.symbolic import fields, literals, names
from trainer.symbolic.component import Component, bind, components
from trainer.symbolic.derived import Derived
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import IntRange

E = TypeVar('E', bound=Component)

_PATH = re.compile(r'[^.\[\]\s]+(\.[^.\[\]\s]+|\[\d{1,9}\])*')


def override(experiment: E, assignments: Iterable[str]) -> E:
    """A copy of `experiment` with other values.

    A value on a decision fixes it. All assignments are made, in their order, before anything is
    checked, so two values may fit only together.

    Args:
        experiment: any component.
        assignments: `path=value` each, such as 'task.learner.learning_rate=1e-3'; the values are
            those of `literals.parse`.

    Raises:
        UserError: a path does not exist, or a value cannot be read, is of the wrong type, or
            does not fit with the others; the message names the path.
    """
    for flag, path, text in _split('--set', assignments):
        value = literals.parse(text, flag)
        if not pg.is_deterministic(value):
            raise UserError(f'{flag}: {text} is a decision: use --tune')
        experiment = _assigned(experiment, path, value, flag)
    return checked(experiment)


def tune(experiment: E, assignments: Iterable[str]) -> E:
    """A copy of `experiment` with decisions in place of values.

    Args:
        experiment: any component.
        assignments: `path=decision` each, such as 'task.model.num_layers=oneof([2, 4])'.

    Raises:
        UserError: as `override`, and where a value holds no decision.
    """
    for flag, path, text in _split('--tune', assignments):
        value = literals.parse(text, flag)
        if pg.is_deterministic(value):
            raise UserError(
                f"{flag}: {text} is no decision: write oneof([…]), floatv(low, high, 'log'), "
                'intv(low, high), manyof(k, […]) or permutate([…]), or use --set'
            )
        experiment = _assigned(experiment, path, value, flag)
    return checked(experiment)


def smoke(experiment: E) -> E:
    """A copy of `experiment` at the tiny size that its own field `smoke` names: path to value.

    Raises:
        UserError: a path or a value there is wrong, or nothing is named there.
    """
    changes = dict(experiment.sym_getattr('smoke'))
    if not changes:
        raise UserError('--smoke: the experiment names no tiny size: fill its field `smoke`')
    return replaced(experiment, changes, '--smoke')


def replaced(experiment: E, changes: Mapping[str, Any], where: str) -> E:
    """A copy of `experiment` with other values.

    Args:
        experiment: any component.
        changes: path to value.
        where: who asks for it, for messages.

    Raises:
        UserError: as `override`.
    """
    for path, value in changes.items():
        experiment = _assigned(experiment, path, pg.clone(value, deep=True), f'{where}: {path}')
    return checked(experiment)


def checked(experiment: E) -> E:
    """A copy in which each component has been checked, those that others own first.

    Raises:
        UserError: values do not fit together; the message begins with the path of their owner.
    """
    for component in reversed(list(components(experiment))):
        if not component.sym_partial and not component.sym_puresymbolic:
            try:
                component.check()
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                where = str(component.sym_path) or type(component).__name__
                raise UserError(f'{where}: {error}') from error
    return experiment.clone(deep=True)


def _split(flag: str, assignments: Iterable[str]) -> Iterable[tuple[str, str, str]]:
    """(what messages begin with, path, value) of each `path=value`."""
    for assignment in assignments:
        path, equals, text = assignment.partition('=')
        if not equals:
            raise UserError(f'{flag} {assignment}: expected path=value')
        yield f'{flag} {path.strip()}', path.strip(), text


def _assigned(experiment: E, path: str, value: Any, where: str) -> E:
    """A copy with one other value, of the right type, not yet checked against its neighbours."""
    return bind(experiment, {path: fields.fit(type_at(experiment, path, where), value, where)})


def type_at(experiment: Component, path: str, where: str) -> Any:
    """The type of a field: its `pg.typing.ValueSpec`; None where it may hold anything.

    Args:
        experiment: any component.
        path: of the field.
        where: who asks for it, for messages.

    Raises:
        UserError: the path does not exist.
    """
    *owners, last = _keys(path, where)
    owner: Any = experiment
    for key in owners:
        _, owner = _field(owner, key, where)
    spec, _ = _field(owner, last, where)
    return spec


def _keys(path: str, where: str) -> list[str | int]:
    if not _PATH.fullmatch(path):
        raise UserError(f'{where}: not a path. Write it like task.model.layers[0].dropout')
    return list(pg.KeyPath.parse(path).keys)


def _field(owner: Any, key: str | int, where: str) -> tuple[Any, Any]:
    """The type and the value of what `owner` holds under `key`.

    Raises:
        UserError: it holds nothing there; says what it does hold.
    """
    here = str(getattr(owner, 'sym_path', ''))
    if isinstance(owner, pg.hyper.HyperPrimitive):
        raise UserError(
            f'{where}: {here} is a decision, whose insides cannot be set. Fix it as a whole: '
            f'{here}={_example(owner)}'
        )
    if isinstance(owner, Derived):
        raise UserError(f'{where}: {here} is {owner}: set it as a whole, or what it follows from')
    if isinstance(owner, pg.List):
        return _item(owner, key, where)
    if isinstance(owner, pg.Object):
        legal, kind = [str(k) for k in owner.sym_init_args], type(owner).__name__
    elif isinstance(owner, pg.Dict):
        legal, kind = [str(k) for k in owner], here
    else:
        raise UserError(f'{where}: {fields.shown(owner)} has no {key} inside')
    if key not in legal:
        full = [str(pg.KeyPath(k, owner.sym_path)) for k in legal]
        hint = names.nearest(str(pg.KeyPath(key, owner.sym_path)), full)
        raise UserError(
            f'{where}: {kind} has no {key!r}. {hint} It has: {", ".join(legal) or "nothing"}.'
        )
    return fields.spec_of(owner, key), owner.sym_getattr(key)


def _item(owner: Any, key: str | int, where: str) -> tuple[Any, Any]:
    if not isinstance(key, int) or key >= len(owner):
        raise UserError(
            f'{where}: {owner.sym_path} is a list of {len(owner)} items, '
            f'{owner.sym_path}[0] to [{len(owner) - 1}]'
        )
    return fields.spec_of(owner, key), owner.sym_getattr(key)


def _example(decision: Any) -> str:
    if isinstance(decision, IntRange):
        return fields.shown(int(decision.max_value))
    if isinstance(decision, pg.hyper.Float):
        return fields.shown(decision.max_value)
    candidate = fields.shown(decision.candidates[0]) if decision.candidates else '…'
    return f'[{candidate}, …]' if isinstance(decision, pg.hyper.ManyOf) else candidate
