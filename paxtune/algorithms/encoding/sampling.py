"""Random draws from a search space, and small random changes."""

import random
import re
from collections import Counter
from collections.abc import Sequence

import pyglove as pg

from paxtune.algorithms.base import Exhausted, SuggestionContext
from paxtune.algorithms.encoding.cache import per_spec
from paxtune.algorithms.encoding.enumeration import enumerate_decisions
from paxtune.algorithms.encoding.scaling import from_unit, to_unit
from paxtune.search_space.decisions import (
    DecisionPoint,
    Decisions,
    active_decision_points,
    decide,
    decision_points,
    is_integer,
    size,
    slot_ids,
    to_dna,
)
from trainer.symbolic.errors import UserError

_MAX_DRAWS = 3000
_MAX_STEPS = 50
_MAX_INFEASIBLE = 2500  # Draws before giving up, or enumerating a small space.
_MAX_CHECKED = 10_000  # A check of feasibility may take some hundredths of a second.

_CONDITION = re.compile(r'\[=(\d+)/\d+\]')


def draw(spec: pg.DNASpec, rng: random.Random) -> Decisions:
    """Draws decisions: numbers uniformly on their scale, choices uniformly over candidates."""
    return decide(spec, lambda point: draw_point(point, rng))


def draw_point(point: DecisionPoint, rng: random.Random) -> list[int] | float:
    """Draws the decision at one point."""
    if isinstance(point, pg.geno.Float):
        return from_unit(point, rng.random())
    chosen = _draw_indices(point, range(len(point.candidates)), point.num_choices, rng)
    return sorted(chosen) if point.sorted else chosen


@per_spec
def _constants(spec: pg.DNASpec) -> frozenset[str]:
    """Ids of the ranges of floats whose bounds are equal."""
    points = decision_points(spec)
    return frozenset(
        each.id.path for each in points if isinstance(each, pg.geno.Float) and size(each) == 1
    )


def draw_eligible(context: SuggestionContext, rng: random.Random) -> Decisions:
    """Draws decisions that are untried and feasible.

    Raises:
        Exhausted: none exist.
        UserError: none were found, although some may exist.
    """
    refused: Counter[str] = Counter()
    for _ in range(_MAX_DRAWS):
        decisions = draw(context.spec, rng)
        # A float that is drawn from a range does not repeat: no need to read the observations.
        floats = {id_ for id_, value in decisions.items() if isinstance(value, float)}
        if floats - _constants(context.spec) or not context.seen(decisions):
            reason = context.infeasibility_reason(decisions)
            if reason is None:
                return decisions
            refused[reason] += 1
            if refused.total() == _MAX_INFEASIBLE:
                break
        if context.size is not None and context.num_ineligible >= context.size:
            raise Exhausted
    hardly_any = refused.total() == _MAX_INFEASIBLE
    if context.size is None or (hardly_any and context.size > _MAX_CHECKED):
        raise _nothing_found(refused)
    # Nearly all of the space was tried or is infeasible.
    return _first_eligible(context)


def _first_eligible(context: SuggestionContext) -> Decisions:
    refused: Counter[str] = Counter()
    for decisions in enumerate_decisions(context.spec):
        if context.seen(decisions):
            continue
        reason = context.infeasibility_reason(decisions)
        if reason is None:
            return decisions
        refused[reason] += 1
        if refused.total() == _MAX_CHECKED:
            raise _nothing_found(refused)
    raise Exhausted


def _nothing_found(refused: Counter[str]) -> UserError:
    if not refused:
        return UserError(f'{_MAX_DRAWS} draws from the search space were all tried before.')
    reasons = '\n'.join(f'  {count} times: {reason}' for reason, count in refused.most_common(3))
    return UserError(
        f'No feasible experiment was found: {refused.total()} experiments of the search space are '
        'all infeasible. Narrow the space or relax its constraints in another --job_log_dir (with '
        '--fork_study to keep the trials), or add a feasible trial with '
        f'python -m paxtune.studies add. The most frequent reasons:\n{reasons}'
    )


def complete(spec: pg.DNASpec, given: Decisions, rng: random.Random) -> Decisions:
    """Completes partial decisions with random ones.

    A decision inside a candidate implies that candidate.

    Raises:
        ValueError: the decisions contradict each other or are unknown to the space.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([1, pg.floatv(0.0, 1.0)]), y=pg.oneof([1, 2])))
        >>> complete(spec, {'x[=1/2]': 0.5, 'y': 0}, random.Random(0))
        {'x': 1, 'x[=1/2]': 0.5, 'y': 0}
    """
    implied = {
        id_[: match.start()]: int(match[1]) for id_ in given for match in _CONDITION.finditer(id_)
    }
    known = implied | given
    decisions = fill(spec, known, rng)
    to_dna(spec, decisions)  # Raises for a decision out of range.
    for id_, value in known.items():
        if decisions.get(id_) != value:
            raise ValueError(f'{id_ or "the decision"} = {value} contradicts the others')
    return decisions


def fill(spec: pg.DNASpec, known: Decisions, rng: random.Random) -> Decisions:
    """Decisions with known values where they are active, and random ones elsewhere.

    Raises:
        ValueError: known indices of a choice are out of range, or leave no candidates.
    """

    def choose(at: DecisionPoint) -> Sequence[int] | float:
        fixed = [known.get(id_) for id_ in slot_ids(at)]
        if isinstance(at, pg.geno.Float):
            return draw_point(at, rng) if fixed[0] is None else fixed[0]
        indices = [None if each is None else int(each) for each in fixed]
        return _complete_choice(at, indices, rng)

    return decide(spec, choose)


def _complete_choice(
    point: pg.geno.Choices, fixed: Sequence[int | None], rng: random.Random
) -> list[int]:
    count = len(point.candidates)
    if any(index is not None and not 0 <= index < count for index in fixed):
        raise ValueError(f'{point.id.path}: there are {count} candidates: {fixed}')
    if not point.sorted:
        taken = fixed if point.distinct else ()
        free = [index for index in range(count) if index not in taken]
        drawn = iter(_draw_indices(point, free, sum(index is None for index in fixed), rng))
        return [next(drawn) if index is None else index for index in fixed]
    chosen: list[int] = []
    while len(chosen) < len(fixed):
        # The slots up to the next fixed one.
        ahead = [slot for slot in range(len(chosen), len(fixed)) if fixed[slot] is not None]
        end = ahead[0] if ahead else len(fixed)
        least = chosen[-1] + point.distinct if chosen else 0
        most = (fixed[end] or 0) - point.distinct if ahead else count - 1
        free = list(range(least, most + 1))
        chosen += sorted(_draw_indices(point, free, end - len(chosen), rng))
        chosen += [index for index in fixed[end : end + 1] if index is not None]
    return chosen


def _draw_indices(
    point: pg.geno.Choices, free: Sequence[int], count: int, rng: random.Random
) -> list[int]:
    if count > (len(free) if point.distinct else count * len(free)):
        raise ValueError(f'{point.id.path}: the other choices leave no candidates for {count}')
    return rng.sample(free, count) if point.distinct else rng.choices(free, k=count)


def changeable_points(spec: pg.DNASpec, parent: Decisions) -> list[DecisionPoint]:
    """Active decision points that can change; empty if the space has one element."""
    return [point for point in active_decision_points(spec, parent) if _can_change(point)]


def mutate(
    spec: pg.DNASpec, parent: Decisions, rng: random.Random, step: float | None = None
) -> Decisions:
    """Changes one decision, drawn uniformly from those that can change.

    Decisions that become active are drawn; all others stay. A choice of several candidates is one
    decision: one candidate is replaced or, if all are chosen, two are swapped. With a `step`, a
    number moves by a normal step of this standard deviation, relative to its range and truncated
    to it. Otherwise it is drawn uniformly.

    Raises:
        ValueError: no decision can change.
    """
    points = changeable_points(spec, parent)
    if not points:
        raise ValueError('no decision can change')
    point = rng.choice(points)
    if isinstance(point, pg.geno.Float):
        kept = parent | {point.id.path: _another_number(point, parent[point.id.path], rng, step)}
    else:
        kept = _change_choice(point, parent, rng)
    return fill(spec, kept, rng)


def _can_change(point: DecisionPoint) -> bool:
    if isinstance(point, pg.geno.Float):
        return bool(point.min_value < point.max_value)
    if point.distinct and point.num_choices == len(point.candidates):
        return point.num_choices > 1 and not point.sorted
    return len(point.candidates) > 1


def _another_number(
    point: pg.geno.Float, number: float, rng: random.Random, step: float | None
) -> int | float:
    if step is not None:
        unit = to_unit(point, number)
        for _ in range(_MAX_STEPS):
            moved = rng.gauss(unit, step)
            if 0.0 <= moved <= 1.0 and (drawn := from_unit(point, moved)) != number:
                return drawn
        if is_integer(point):  # All moves are rounded to the same number.
            neighbours = (int(number) - 1, int(number) + 1)
            return rng.choice([n for n in neighbours if point.min_value <= n <= point.max_value])
    for _ in range(_MAX_DRAWS):
        drawn = from_unit(point, rng.random())
        if drawn != number:
            return drawn
    # The range is a few units in the last slot wide.
    other = point.max_value if number == point.min_value else point.min_value
    return int(other) if is_integer(point) else float(other)


def _change_choice(point: pg.geno.Choices, parent: Decisions, rng: random.Random) -> Decisions:
    """Decisions with one choice changed, without the children of the old candidate."""
    names = slot_ids(point)
    items = [(int(parent[name]), child_decisions(parent, name)) for name in names]
    chosen = [index for index, _ in items]
    slot = rng.randrange(len(items))
    taken = chosen if point.distinct else [chosen[slot]]
    free = [index for index in range(len(point.candidates)) if index not in taken]
    if free:
        items[slot] = (rng.choice(free), {})
    else:
        other = rng.choice([each for each in range(len(items)) if each != slot])
        items[slot], items[other] = items[other], items[slot]
    if point.sorted:
        items.sort(key=lambda item: item[0])
    inside = tuple(f'{name}[=' for name in names)
    kept = {id_: value for id_, value in parent.items() if not id_.startswith(inside)}
    for name, (index, children) in zip(names, items, strict=True):
        kept[name] = index
        kept |= {f'{name}{rest}': value for rest, value in children.items()}
    return kept


def child_decisions(decisions: Decisions, name: str) -> Decisions:
    """Decisions inside the choice `name`, by the rest of their ids."""
    return {
        id_[len(name) :]: value for id_, value in decisions.items() if id_.startswith(f'{name}[=')
    }
