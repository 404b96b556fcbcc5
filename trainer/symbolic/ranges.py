"""Integer ranges for searches, without a list of every value.

PyGlove has ranges of floats only. `IntRange`, made by `intv`, is a decision for integer fields.
`IntPoint` is its decision point in a search space.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import pyglove as pg

from trainer.symbolic import plain_numbers

V = TypeVar('V')

_MAX_BOUND = 2**53  # PyGlove stores the bounds as floats, which are exact up to here.


class IntPoint(pg.geno.Float):
    """Decision point of an integer from `min_value` to `max_value`, both included.

    Its DNA is the number as a float, as PyGlove requires of numerical points.
    """

    @property
    def space_size(self) -> int:
        return int(self.max_value) - int(self.min_value) + 1

    def validate(self, dna: pg.DNA) -> None:
        super().validate(dna)
        if not dna.value.is_integer():
            raise ValueError(f'{self.location}: expected a whole number: {dna.value}')

    def _next_dna(self, dna: pg.DNA | None = None) -> pg.DNA | None:
        if dna is None:
            return pg.DNA(self.min_value)
        return pg.DNA(dna.value + 1) if dna.value < self.max_value else None

    def _random_dna(self, random_generator: Any, previous_dna: pg.DNA | None) -> pg.DNA:
        # Uniform, as PyGlove does for floats: its generators ignore the scale.
        low, high = int(self.min_value), int(self.max_value)
        return pg.DNA(float(random_generator.randint(low, high)))


class IntRange(pg.hyper.Float):
    """The decision of `intv`: occupies an integer field, and becomes an integer."""

    def __new__(cls, *args: Any, **fields: Any) -> Any:
        # A number where a function makes the decision itself (`pg.hyper.trace`).
        made = super().__new__(cls, *args, **fields)
        return int(made) if isinstance(made, float) else made

    def _on_bound(self) -> None:
        super()._on_bound()
        for bound in (self.min_value, self.max_value):
            if not (bound.is_integer() and abs(bound) <= _MAX_BOUND):
                raise ValueError(
                    f'the bounds of intv must be whole numbers, at most 2**53 in size: {bound}'
                )

    def dna_spec(self, location: pg.KeyPath | None = None) -> IntPoint:
        return IntPoint(
            self.min_value,
            self.max_value,
            self.scale,
            hints=self.hints,
            location=location or pg.KeyPath(),
            name=self.name,
        )

    def _decode(self) -> int:
        number: float = super()._decode()
        if not number.is_integer():
            raise ValueError(f'{self.sym_path}: expected a whole number: {number}')
        return int(number)

    def encode(self, value: int) -> pg.DNA:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f'{self.sym_path}: expected a whole number: {value!r}')
        return super().encode(float(value))

    def custom_apply(
        self, path: pg.KeyPath, value_spec: Any, *unused: Any, **unused_named: Any
    ) -> tuple[bool, 'IntRange']:
        """Called by PyGlove with the type of the field that the range is assigned to."""
        if value_spec.value_type and isinstance(self, value_spec.value_type):
            return False, self
        union = isinstance(value_spec, pg.typing.Union)
        specs = list(value_spec.candidates) if union else [value_spec]
        integers = [spec for spec in specs if isinstance(spec, pg.typing.Int)]
        if not integers:
            floats = any(isinstance(spec, pg.typing.Float) for spec in specs)
            as_floats = f'floatv({self.min_value}, {self.max_value}{self._scale_text})'
            instead = f': use {as_floats}' if floats else ''
            raise TypeError(f'{path}: {self.text} is for integer fields only{instead}')
        if not any(map(self._is_within, integers)):
            least, most = integers[0].min_value, integers[0].max_value
            raise ValueError(
                f'{path}: {self.text} contains invalid numbers for this field. Valid numbers are '
                f'from {"-∞" if least is None else least} to {"∞" if most is None else most}.'
            )
        return False, self

    def _is_within(self, spec: pg.typing.Int) -> bool:
        above = spec.min_value is None or spec.min_value <= self.min_value
        return above and (spec.max_value is None or self.max_value <= spec.max_value)

    @property
    def text(self) -> str:
        """The range as a literal: `intv(1, 8, 'log')`."""
        return f'intv({int(self.min_value)}, {int(self.max_value)}{self._scale_text})'

    @property
    def _scale_text(self) -> str:
        return '' if self.scale is None else f', {self.scale!r}'


def with_plain_scales(value: V) -> V:
    """Returns a copy of a symbolic tree whose linear ranges have no scale: both are the same.

    Returns `value` itself if no range says 'linear'.

    Example:
        >>> with_plain_scales(pg.Dict(x=pg.floatv(0.0, 1.0, 'linear'))).x.scale
    """
    linear = [
        str(path)
        for path, leaf in plain_numbers.leaves(value)
        if isinstance(leaf, str)
        and (path.key, leaf) == ('scale', 'linear')
        and isinstance(value.sym_get(path.parent), pg.hyper.Float)  # type: ignore[attr-defined]
    ]
    if not linear:
        return value
    copy: V = pg.clone(value, deep=True)
    copy.rebind(dict.fromkeys(linear))  # type: ignore[attr-defined]
    return copy


IntPoint.register_for_deserialization('trainer.IntPoint')
IntRange.register_for_deserialization('trainer.IntRange')


def intv(
    min_value: int, max_value: int, scale: str | None = None, *, name: str | None = None
) -> Any:
    """Makes a decision between all integers of a range.

    Args:
        min_value: the smallest integer.
        max_value: the largest integer, included.
        scale: quantity with a uniform distribution: the number (None or 'linear'), its logarithm
            ('log'), or the logarithm of its distance from the top of the range ('rlog').
            Logarithms need a range that starts above 0.
        name: a name for the decision.

    Raises:
        ValueError: the bounds are not integers, in the wrong order, or too low for the scale.

    Example:
        >>> class Stack(pg.Object):
        ...     depth: int
        >>> pg.materialize(Stack(intv(1, 64, 'log')), pg.DNA(12.0)).depth
        12
    """
    return IntRange(min_value, max_value, scale, name=name)


def floatv(
    min_value: float, max_value: float, scale: str | None = None, *, name: str | None = None
) -> Any:
    """Makes a decision between all numbers of a range: `pg.floatv`.

    Args:
        min_value: the smallest number.
        max_value: the largest number, included.
        scale: as of `intv`.
        name: a name for the decision.

    Example:
        >>> floatv(1e-4, 1e-1, 'log').scale
        'log'
    """
    return pg.floatv(min_value, max_value, scale, name=name)


def oneof(candidates: Iterable[Any], *, name: str | None = None) -> Any:
    """Makes a decision between candidates: `pg.oneof`.

    Args:
        candidates: values, which may have decisions in them.
        name: a name for the decision.

    Example:
        >>> list(oneof(['adam', 'sgd']).candidates)
        ['adam', 'sgd']
    """
    return pg.oneof(candidates, name=name)
