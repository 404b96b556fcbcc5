"""Known values: the values of decisions that are expected to be good before any trial has run.

For each decision, the first of these counts:

1. The user gives a value: `Search.prior`.
2. The experiment has a value without a search, and it is not the default of the field's class.
3. A component states a usual value (`trainer.symbolic.usual_values`), or a function has an argument
   with a common name (`usual_names`).
4. The experiment has the default of that class.

They are found when a study is created, and recorded with it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyglove as pg

from paxtune.algorithms.base import KnownValue
from paxtune.algorithms.encoding.known_values import MIN_DEVIATION
from paxtune.algorithms.encoding.scaling import from_unit, to_unit
from paxtune.config.search import Search
from paxtune.search_space.decisions import (
    DecisionPoint,
    all_slots,
    is_integer,
    numeric_candidates,
)
from paxtune.search_space.labels import parameter_path
from paxtune.search_space.space import Space
from paxtune.study import initial_trials
from paxtune.study.record import KnownDecision
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue, usual_values

GIVEN, OWN, DEFAULT = 'given', 'the value of the experiment', 'the default of the experiment'
"""Reasons of known values; other reasons are the sources of usual values."""

_DEVIATION = KnownValue(0).deviation
_OTHERS = 0.32
"""Probability of all other candidates of a choice: a usual value holds for 68 % of recipes."""


def known_values(
    space: Space,
    search: Search,
    base: Any = None,
    named: Mapping[str, UsualValue] | None = None,
) -> dict[str, KnownDecision]:
    """Finds the known values of a search, by the id of their decision.

    The algorithm gets no value where it uses none, and with `Search(prior=None)`. A usual value
    outside of a range stands at its nearer end, if the range holds other usual values; else the
    user means something else, and nothing is known.

    Args:
        space: the search space.
        search: its configuration.
        base: the experiment before its decisions were opened; None where classes alone have values.
        named: usual values by the path of an argument.

    Raises:
        UserError: the user's values are not in the space.
    """
    given = _given(space, search.prior or {})
    algorithm = search.algorithm.resolved(space.spec, len(search.rewards))
    if search.prior is None or not algorithm.uses_prior:
        return given
    usual = {**(named or {}), **usual_values(space.value)}
    own = initial_trials.own_values(space, space.value if base is None else base)
    found: dict[str, KnownDecision] = {}
    for slot in all_slots(space.spec):
        id_ = slot.id.path
        stated = _of_usual(space, slot, usual[id_]) if id_ in usual else None
        value, is_default = own.get(id_, (None, True))
        mine = None if value is None else _of_own(slot, value, is_default, stated)
        first = (given.get(id_), *((stated, mine) if is_default else (mine, stated)))
        if known := next(filter(None, first), None):
            found[id_] = known
    return found


def given_values(space: Space, search: Search) -> dict[str, KnownDecision]:
    """Reads only the values that the user gives; raises UserError as `known_values`."""
    return _given(space, search.prior or {})


def for_algorithm(known: Mapping[str, KnownDecision]) -> dict[str, KnownValue]:
    """Returns known values as algorithms see them."""
    return {id_: KnownValue(each.value, each.deviation) for id_, each in known.items()}


def interval(point: DecisionPoint, known: KnownDecision) -> tuple[float, float] | None:
    """Returns the numbers of a range one deviation below and above a known value.

    Returns None for a choice.
    """
    if isinstance(point, pg.geno.Choices):
        return None
    unit = to_unit(point, known.value)
    ends = [
        from_unit(point, min(max(unit + by, 0.0), 1.0))
        for by in (-known.deviation, known.deviation)
    ]
    return min(ends), max(ends)


def in_words(space: Space, known: Mapping[str, KnownDecision]) -> str:
    """Renders known values by their reasons.

    Example:
        >>> space = Space(pg.Dict(rate=pg.floatv(0.0, 1.0), kind=pg.oneof(['a', 'b'])))
        >>> in_words(space, {'rate': KnownDecision(0.5, 0.2, 'Kay 1999')})
        'rate=0.5 (Kay 1999)'
    """
    by_reason: dict[str, list[str]] = {}
    for id_, each in known.items():
        by_reason.setdefault(each.reason, []).append(
            f'{parameter_path(id_)}={name_of(space, id_, each)}'
        )
    return '; '.join(f'{", ".join(texts)} ({reason})' for reason, texts in by_reason.items())


def name_of(space: Space, id_: str, known: KnownDecision) -> Any:
    """Returns a known value for people, numbers with few digits."""
    value = space.readable({id_: known.value})[parameter_path(id_)]
    return float(f'{value:.3g}') if isinstance(value, float) else value


def _given(space: Space, prior: Mapping[str, Any]) -> dict[str, KnownDecision]:
    """Reads values by path; a decision inside candidates gets its value in all that allow it."""
    space.require_names(prior)
    found: dict[str, KnownDecision] = {}
    illegal: dict[str, str] = {}
    for slot in all_slots(space.spec):
        path = parameter_path(slot.id.path)
        if path not in prior:
            continue
        try:
            found[slot.id.path] = _of_given(space, slot, prior[path])
            illegal[path] = ''
        except ValueError as error:
            illegal.setdefault(path, str(error))
    for path, legal in illegal.items():
        if legal:
            raise UserError(f'{path} must be {legal}: {prior[path]!r}')
    return found


def _of_given(space: Space, slot: DecisionPoint, value: Any) -> KnownDecision:
    """Reads a value, or an interval; raises ValueError with the legal values."""
    is_interval = isinstance(value, list | tuple) and _Scale.fits(slot)
    if not is_interval:
        if (legal := space.legal(slot, value)) is None:
            raise ValueError(space.legal_values(slot))
        return KnownDecision(legal, _DEVIATION, GIVEN)
    expected = f'{space.legal_values(slot)}, or an interval [low, high] of good values'
    numbers = [each for each in value if type(each) in (int, float) and math.isfinite(each)]
    if len(value) != 2 or len(numbers) != 2 or numbers[0] > numbers[1]:
        raise ValueError(expected)
    scale = _Scale(slot)
    if (made := scale.known(scale.middle(*numbers), *numbers)) is None:
        raise ValueError(expected)
    return KnownDecision(*made, GIVEN)


def _of_usual(space: Space, slot: DecisionPoint, usual: UsualValue) -> KnownDecision | None:
    """Translates a usual value; None where the decision leaves out all usual values."""
    if usual.is_number and _Scale.fits(slot):
        made = _Scale(slot).known(usual.value, usual.low, usual.high)
        return None if made is None else KnownDecision(*made, usual.source)
    if not isinstance(slot, pg.geno.Choices):
        return None
    for i, candidate in enumerate(space.candidates(slot)):
        if usual.is_candidate(candidate):
            return KnownDecision(i, _OTHERS, usual.source)
    return None


def _of_own(
    slot: DecisionPoint, value: int | float, is_default: bool, stated: KnownDecision | None
) -> KnownDecision:
    deviation = _DEVIATION if stated is None else stated.deviation
    return KnownDecision(value, deviation, DEFAULT if is_default else OWN)


class _Scale:
    """The numbers of a decision on its scale, from 0 to 1: a range, or candidates in order."""

    def __init__(self, slot: DecisionPoint) -> None:
        self._slot = slot
        self._order: Sequence[float] = ()
        if isinstance(slot, pg.geno.Choices):
            self._numbers = numeric_candidates(slot)
            self._order = sorted(self._numbers)
            self._is_log = self._order[0] > 0
            self.low, self.high = self._order[0], self._order[-1]
        else:
            self.low, self.high = slot.min_value, slot.max_value

    @staticmethod
    def fits(slot: DecisionPoint) -> bool:
        """Returns True for a range, and for a choice between numbers."""
        return not isinstance(slot, pg.geno.Choices) or len(numeric_candidates(slot)) > 0

    def known(self, value: float, low: float, high: float) -> tuple[int | float, float] | None:
        """Returns a legal value and its deviation; None if `low` to `high` is outside.

        The deviation is the mean distance of the ends that are inside. An end outside is not known.
        It is at least half of a step between candidates or integers, so that neighbours may come.
        """
        if high < self.low or low > self.high:
            return None
        made = self.legal(value)
        at = self.unit(self._number(made))
        inside = [abs(self.unit(end) - at) for end in (low, high) if self.low <= end <= self.high]
        whole = (self.unit(high) - self.unit(low)) / 2
        deviation = sum(inside) / len(inside) if inside else whole
        return made, min(max(deviation, self._least(made)), 1.0)

    def _least(self, decision: int | float) -> float:
        """Returns the least deviation at a decision."""
        if self._order:
            return 0.5 / len(self._order)
        if is_integer(self._slot):
            at = self.unit(decision)
            steps = [abs(self.unit(decision + by) - at) for by in (-1, 1)]
            return max(max(steps) / 2, MIN_DEVIATION)
        return MIN_DEVIATION

    def middle(self, low: float, high: float) -> float:
        """Returns the middle of an interval on the scale."""
        unit = (self.unit(low) + self.unit(high)) / 2
        if isinstance(self._slot, pg.geno.Choices):
            return self._order[min(int(unit * len(self._order)), len(self._order) - 1)]
        return from_unit(self._slot, unit)

    def legal(self, number: float) -> int | float:
        """Returns the legal decision nearest to a number."""
        if isinstance(self._slot, pg.geno.Choices):
            unit = self.unit(number)
            nearest = min(self._order, key=lambda each: abs(self.unit(each) - unit))
            return self._numbers.index(nearest)
        number = min(max(number, self.low), self.high)
        return round(number) if is_integer(self._slot) else float(number)

    def _number(self, decision: int | float) -> float:
        is_choice = isinstance(self._slot, pg.geno.Choices)
        return self._numbers[int(decision)] if is_choice else decision

    def unit(self, number: float) -> float:
        """Returns the place of a number, which is first brought inside."""
        number = min(max(number, self.low), self.high)
        if not isinstance(self._slot, pg.geno.Choices):
            return to_unit(self._slot, number)
        # A candidate has the middle of its cell, and other numbers lie between.
        places = [math.log(each) if self._is_log else each for each in (*self._order, number)]
        above = next(i for i, each in enumerate(places[:-1]) if each >= places[-1])
        below = max(above - 1, 0)
        gap = places[above] - places[below]
        share = 1.0 if gap == 0 else (places[-1] - places[below]) / gap
        return (below + (above - below) * share + 0.5) / len(self._order)
