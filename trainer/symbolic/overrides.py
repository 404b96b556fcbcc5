"""Overrides of an experiment by path: `--set`, `--tune`, `--smoke`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import pyglove as pg

from trainer.symbolic import fields, literals
from trainer.symbolic.component import Component, bind, components
from trainer.symbolic.derived import Derived
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.ranges import IntRange

E = TypeVar('E', bound=Component)

_PATH = re.compile(r'[^.\[\]\s]+(\.[^.\[\]\s]+|\[\d{1,9}\])*')


def override(experiment: E, assignments: Iterable[str], flag: str = '--set') -> E:
    """Returns a copy of `experiment` with other values.

    A value for a decision fixes it. All assignments are made, in order, before any check, so
    values may depend on each other.

    Args:
        experiment: any component.
        assignments: texts `path=value`, such as 'task.learner.learning_rate=1e-3'; `literals.parse`
            parses the values.
        flag: that gave them, for messages.

    Raises:
        UserError: a path does not exist, or a value cannot be parsed, has the wrong type, or does
            not fit with the others; the message has the path.
    """
    for what, path, text in _split(flag, assignments):
        value = literals.parse(text, what)
        if not pg.is_deterministic(value):
            raise UserError(f'{what}: {text} is a decision: use --tune')
        experiment = _assigned(experiment, path, value, what)
    return checked(experiment)


def tune(experiment: E, assignments: Iterable[str]) -> E:
    """Returns a copy of `experiment` with decisions in place of values.

    Raises:
        UserError: as `override`, and if a value contains no decision.
    """
    for flag, path, text in _split('--tune', assignments):
        value = literals.parse(text, flag)
        if pg.is_deterministic(value):
            raise UserError(
                f"{flag}: {text} is not a decision: write oneof([…]), floatv(low, high, 'log'), "
                'intv(low, high), manyof(k, […]) or permutate([…]), or use --set'
            )
        experiment = _assigned(experiment, path, value, flag)
    return checked(experiment)


def smoke(experiment: E) -> E:
    """Returns a copy of `experiment` at the tiny size that its field `smoke` defines.

    Raises:
        UserError: the field is empty, or a path or a value in it is wrong.
    """
    changes = dict(experiment.sym_getattr('smoke'))
    if not changes:
        raise UserError('--smoke: the experiment defines no tiny size: fill its field `smoke`')
    return replaced(experiment, changes, '--smoke')


def replaced(experiment: E, changes: Mapping[str, Any], where: str) -> E:
    """Returns a copy of `experiment` with other values; raises UserError as `override`."""
    for path, value in changes.items():
        experiment = _assigned(experiment, path, pg.clone(value, deep=True), f'{where}: {path}')
    return checked(experiment)


def checked(experiment: E) -> E:
    """Checks each component, parts before their owners, and returns a copy.

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
    """Yields (prefix of messages, path, value) of each `path=value`."""
    for assignment in assignments:
        path, equals, text = assignment.partition('=')
        if not equals:
            raise UserError(f'{flag} {assignment}: expected path=value')
        yield f'{flag} {path.strip()}', path.strip(), text


def _assigned(experiment: E, path: str, value: Any, where: str) -> E:
    """A copy with one other value of the right type, without any check of the owner."""
    return bind(experiment, {path: fields.fit(type_at(experiment, path, where), value, where)})


def type_at(experiment: Component, path: str, where: str) -> Any:
    """The type of a field: its `pg.typing.ValueSpec`; None if it accepts anything.

    Raises:
        UserError: the path does not exist.
    """
    if not _PATH.fullmatch(path):
        raise UserError(f'{where}: not a path. Write it like task.model.layers[0].dropout')
    *owners, last = pg.KeyPath.parse(path).keys
    owner: Any = experiment
    for key in owners:
        _, owner = _field(owner, key, where)
    spec, _ = _field(owner, last, where)
    return spec


def _field(owner: Any, key: str | int, where: str) -> tuple[Any, Any]:
    here = str(getattr(owner, 'sym_path', ''))
    if isinstance(owner, pg.hyper.HyperPrimitive):
        raise UserError(
            f'{where}: {here} is a decision, whose fields cannot be set. Fix it as a whole: '
            f'{here}={_example(owner)}'
        )
    if isinstance(owner, Derived):
        raise UserError(f'{where}: {here} is {owner}: set it as a whole, or the fields it reads')
    if isinstance(owner, pg.List):
        return _item(owner, key, where)
    if isinstance(owner, pg.Object):
        legal, kind = [str(k) for k in owner.sym_init_args], type(owner).__name__
    elif isinstance(owner, pg.Dict):
        legal, kind = [str(k) for k in owner], here
    else:
        raise UserError(f'{where}: {fields.to_literal(owner)} has no {key} inside')
    if key not in legal:
        full = [str(pg.KeyPath(k, owner.sym_path)) for k in legal]
        hint = nearest(str(pg.KeyPath(key, owner.sym_path)), full)
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
        return fields.to_literal(int(decision.max_value))
    if isinstance(decision, pg.hyper.Float):
        return fields.to_literal(decision.max_value)
    candidate = fields.to_literal(decision.candidates[0]) if decision.candidates else '…'
    return f'[{candidate}, …]' if isinstance(decision, pg.hyper.ManyOf) else candidate
