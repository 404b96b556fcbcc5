"""The search space of an experiment: the experiments in it, and its decisions for people."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyglove as pg

from paxtune.search_space.decisions import (
    MOST_DECISIONS,
    Decisions,
    Point,
    active_points,
    decide,
    ids,
    is_integer,
    places,
    points,
    size,
)
from paxtune.search_space.decoder import Decoder
from paxtune.search_space.labels import labels, match, path
from paxtune.search_space.shared_decisions import hoisted
from trainer.symbolic.component import Component
from trainer.symbolic.derived import SHARED, check_names, settle
from trainer.symbolic.errors import UserError
from trainer.symbolic.names import nearest
from trainer.symbolic.ranges import IntRange


class Space:
    """What is open in a symbolic value, and the way from decisions to concrete values.

    For people, a decision stands at its path in the concrete experiment, and a candidate is named
    by its value, or by its class with what differs from the class's defaults.

    Decisions of one name are one decision (`shared_decisions.hoisted`). Derived values are worked
    out once the decisions are made.

    Attributes:
        value: the symbolic value, decisions and all, those of one name in its field `shared`.
        spec: its search space.

    Example:
        >>> space = Space(pg.Dict(rate=pg.floatv(1e-4, 1e-2, 'log'), kind=pg.oneof(['a', 'b'])))
        >>> decisions = space.parse({'rate': 0.001, 'kind': 'b'})
        >>> decisions
        {'rate': 0.001, 'kind': 1}
        >>> space.readable(decisions)
        {'rate': 0.001, 'kind': 'b'}
        >>> space.materialize(decisions).kind
        'b'
    """

    def __init__(self, value: Any) -> None:
        """Reads the space of a value.

        Raises:
            UserError: the space is empty, or holds something that cannot be searched, or a
                derived value that names what is not there.
        """
        self.value = hoisted(value)
        # A mapping was given the key for shared decisions, and is to come out without it.
        self._drops_shared = isinstance(value, pg.Dict) and SHARED not in value
        check_names(self.value)
        template = pg.template(self.value)
        _validate(template, pg.KeyPath())
        _refuse_too_many(template)
        try:
            self.spec: pg.DNASpec = template.dna_spec()
        except ValueError as error:
            raise UserError(f'The search space does not hold together: {error}') from error
        if not self.spec.elements:
            raise UserError(
                'There is nothing to search: no field of the experiment holds a decision such as '
                "pg.oneof([…]) or pg.floatv(low, high). Put one there, or use --tune 'path=…'."
            )
        self._labels: dict[str, list[Any]] = {}
        self._label(template, self.spec)
        self._decoder = Decoder(template, self.spec)

    def _label(self, template: pg.hyper.ObjectTemplate, spec: pg.geno.Space) -> None:
        # A template's hyper values and its spec's elements are two views of the same points.
        for (_, hyper), point in zip(template.hyper_primitives, spec.elements, strict=True):
            if isinstance(point, pg.geno.Float):
                continue
            names = labels(hyper.candidates)
            for place in places(point):
                self._labels[place.id.path] = names
                opened = zip(hyper.candidate_templates, place.candidates, strict=True)
                for candidate_template, candidate_spec in opened:
                    self._label(candidate_template, candidate_spec)

    @property
    def is_tunable(self) -> bool:
        """Whether the value is a `Tunable`, as opposed to the values of a function."""
        # The class itself is not imported here: that imports JAX.
        return isinstance(self.value, Component) and hasattr(type(self.value), 'parts')

    @property
    def sub_experiments(self) -> list[str]:
        """The names of what each trial trains, one after another; none where it trains one."""
        return [str(name) for name in self.value.sub_experiments] if self.is_tunable else []

    @property
    def size(self) -> int | None:
        """The number of different experiments; None where a range makes them countless."""
        return size(self.spec)

    @property
    def ids(self) -> list[str]:
        """The ids of all decisions that there may be to make."""
        return [id_ for point in points(self.spec) for id_ in ids(point)]

    @property
    def paths(self) -> list[str]:
        """The paths of all decisions that there may be to make."""
        return list(dict.fromkeys(map(path, self.ids)))

    def materialize(self, decisions: Decisions) -> Any:
        """The concrete experiment.

        Raises:
            ValueError: the decisions do not fit together, says a component's `check`, or a derived
                value does not fit its field.
            UserError: a derived value names what is not there with these decisions.
        """
        return self._without_drops(settle(self.decided(decisions)))

    def decided(self, decisions: Decisions) -> Any:
        """The experiment with every decision made, derived values still in their places.

        Raises:
            ValueError: as `materialize`.
        """
        return self._decoder.decode(decisions)

    def _without_drops(self, value: Any) -> Any:
        if self._drops_shared:
            value.pop(SHARED, None)
        return value

    def readable(self, decisions: Decisions) -> dict[str, Any]:
        """Decisions as {path in the concrete experiment: plain value or short name}."""
        return {
            path(id_): self._labels[id_][int(value)] if id_ in self._labels else value
            for id_, value in decisions.items()
        }

    def parse(self, readable: Mapping[str, Any], partial: bool = False) -> Decisions:
        """Decisions from what a person wrote; the inverse of `readable`.

        Args:
            readable: {path in the concrete experiment: value}. Values may be text from a command
                line: `'64'` does for 64, `'Gelu()'` for that component.
            partial: decisions may be left open.

        Raises:
            UserError: a decision is left open (unless `partial`) or is none of the experiment's,
                or a value is not legal.
        """
        decisions: Decisions = {}
        missing: list[str] = []
        self._parse(self.spec, readable, decisions, missing)
        self._refuse_unknown(readable)
        if missing and not partial:
            raise UserError('These decisions are left open:\n  ' + '\n  '.join(missing))
        if closed := set(readable) - set(map(path, decisions)):
            raise UserError(f'{min(closed)} is not open, given the other decisions.')
        if not missing:
            _refuse_repeated(self.spec, decisions)
        return decisions

    def adopt(self, value_at: Callable[[str], Any]) -> Decisions | None:
        """Decisions from values of another space.

        Args:
            value_at: called with the path of each decision that is to be made; what it returns is
                looked up among the legal values.

        Returns:
            The decisions; None where one is missing or not legal here.
        """

        def choose(point: Point) -> Sequence[int] | float:
            values = [
                self._value(place, value_at(path(place.id.path)))
                for place in ([point] if isinstance(point, pg.geno.Float) else places(point))
            ]
            if None in values:
                raise LookupError(point.id.path)
            found: Any = values[0] if isinstance(point, pg.geno.Float) else values
            return found

        try:
            decisions = decide(self.spec, choose)
            _refuse_repeated(self.spec, decisions)
        except (LookupError, UserError):
            return None
        return decisions

    def _parse(
        self, spec: pg.DNASpec, readable: Mapping[str, Any], made: Decisions, missing: list[str]
    ) -> None:
        if isinstance(spec, pg.geno.Space):
            for element in spec.elements:
                self._parse(element, readable, made, missing)
            return
        for place in [spec] if isinstance(spec, pg.geno.Float) else places(spec):
            name = path(place.id.path)
            if name not in readable:
                missing.append(f'{name}: {self.legal(place)}')
                continue
            value = self._value(place, readable[name])
            if value is None:
                raise UserError(f'{name} must be {self.legal(place)}: {readable[name]!r}')
            made[place.id.path] = value
            if isinstance(place, pg.geno.Choices):
                self._parse(place.candidates[value], readable, made, missing)

    def _value(self, point: Point, value: Any) -> int | float | None:
        if isinstance(point, pg.geno.Choices):
            return match(value, self._labels[point.id.path])
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (OverflowError, TypeError, ValueError):
            return None
        if not point.min_value <= number <= point.max_value:
            return None
        if is_integer(point):
            return int(number) if number.is_integer() else None
        return number

    def legal(self, point: Point) -> str:
        """What may be decided at a place, in words."""
        if isinstance(point, pg.geno.Choices):
            return 'one of ' + ', '.join(map(str, self._labels[point.id.path]))
        if is_integer(point):
            return f'a whole number from {int(point.min_value)} to {int(point.max_value)}'
        return f'a number from {point.min_value!r} to {point.max_value!r}'

    def labels(self, place: pg.geno.Choices) -> list[Any]:
        """The names of what can be chosen at a place."""
        return list(self._labels[place.id.path])

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        known = self.paths
        for name in names:
            if name not in known:
                hint = nearest(name, known) or f'Its decisions are {", ".join(known)}.'
                raise UserError(f'{name} is no decision of this experiment. {hint}')


def _validate(template: pg.hyper.ObjectTemplate, where: pg.KeyPath) -> None:
    for relative, hyper in template.hyper_primitives:
        here = where + relative
        if isinstance(hyper, pg.hyper.Float):
            _validate_range(hyper, here)
        elif isinstance(hyper, pg.hyper.Choices):
            for candidate in hyper.candidate_templates:
                _validate(candidate, here)
        else:
            raise UserError(
                f'{here}: {type(hyper).__name__} cannot be searched. Use pg.oneof, pg.manyof, '
                'pg.permutate, pg.floatv or paxtune.intv.'
            )


def _refuse_too_many(template: pg.hyper.ObjectTemplate) -> None:
    numbers = {path: _num_decisions(hyper) for path, hyper in template.hyper_primitives}
    if sum(numbers.values()) > MOST_DECISIONS:
        where = max(numbers, key=lambda path: numbers[path])
        raise UserError(
            f'{where}: {numbers[where]} decisions are too many, those inside of others included: '
            f'there may be {MOST_DECISIONS}'
        )


def _num_decisions(hyper: Any) -> int:
    if not isinstance(hyper, pg.hyper.Choices):
        return 1
    opened = sum(
        _num_decisions(inner)
        for candidate in hyper.candidate_templates
        for _, inner in candidate.hyper_primitives
    )
    return int(hyper.num_choices) * (1 + opened)


def _validate_range(hyper: pg.hyper.Float, where: pg.KeyPath) -> None:
    low, high = hyper.min_value, hyper.max_value
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(
            f'{where}: a range must have finite bounds, the lower one first: {low}, {high}'
        )
    if isinstance(hyper, IntRange) and not (low.is_integer() and high.is_integer()):
        raise UserError(f'{where}: the bounds of intv must be whole numbers: {low}, {high}')
    if hyper.scale in ('log', 'rlog') and low <= 0:
        raise UserError(f'{where}: a range on a {hyper.scale} scale must start above 0: {low}')


def _refuse_repeated(spec: pg.DNASpec, decisions: Decisions) -> None:
    for point in active_points(spec, decisions):
        chosen = [decisions[id_] for id_ in ids(point)]
        if len(chosen) == 1:
            continue
        if point.distinct and len(set(chosen)) < len(chosen):
            raise UserError(f'{path(point.id.path)}: the choices must differ from each other.')
        if point.sorted and chosen != sorted(chosen):
            raise UserError(f'{path(point.id.path)}: the choices must be in order of candidates.')
