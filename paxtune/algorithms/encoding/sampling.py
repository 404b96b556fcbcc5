"""Random draws from a search space, and small random changes."""

import random
import re
from collections import Counter
from collections.abc import Sequence

import pyglove as pg

from paxtune.algorithms.base import Exhausted, SuggestionContext
from paxtune.algorithms.encoding.scaling import from_share, to_share
from paxtune.search_space.decisions import (
    Decisions,
    Point,
    active_points,
    decide,
    enumerate_decisions,
    ids,
    is_integer,
    to_dna,
)
from trainer.symbolic.errors import UserError

_MAX_DRAWS = 3000
_MAX_MOVES = 50
_MAX_INFEASIBLE = 2500  # Draws until one gives up, or looks at each experiment of a small space.
_MAX_LOOKED_AT = 10_000  # Infeasible experiments: making one may take some hundredths of a second.

_OPENED = re.compile(r'\[=(\d+)/\d+\]')


def draw(spec: pg.DNASpec, rng: random.Random) -> Decisions:
    """Decisions at random: numbers uniform on their scale, choices uniform over candidates."""
    return decide(spec, lambda point: draw_point(point, rng))


def draw_point(point: Point, rng: random.Random) -> list[int] | float:
    """A decision at one point."""
    if isinstance(point, pg.geno.Float):
        return from_share(point, rng.random())
    chosen = _draw_indices(point, range(len(point.candidates)), point.num_choices, rng)
    return sorted(chosen) if point.sorted else chosen


def draw_eligible(context: SuggestionContext, rng: random.Random) -> Decisions:
    """Decisions at random that no earlier trial has and that are feasible.

    Raises:
        Exhausted: there are none.
        UserError: none were found, though there may be some.
    """
    refused: Counter[str] = Counter()
    for _ in range(_MAX_DRAWS):
        decisions = draw(context.spec, rng)
        # A float drawn from a range does not come twice: no need to read the history.
        holds_float = any(isinstance(value, float) for value in decisions.values())
        if holds_float or not context.seen(decisions):
            reason = context.infeasibility_reason(decisions)
            if reason is None:
                return decisions
            refused[reason] += 1
            if refused.total() == _MAX_INFEASIBLE:
                break
        if context.size is not None and context.num_ineligible >= context.size:
            raise Exhausted
    hardly_any = refused.total() == _MAX_INFEASIBLE
    if context.size is None or (hardly_any and context.size > _MAX_LOOKED_AT):
        raise _nothing_found(refused)
    # Nearly all of the space was tried or is infeasible: take the first of the rest.
    return first_eligible(context, _MAX_LOOKED_AT)


def first_eligible(context: SuggestionContext, max_infeasible: int | None = None) -> Decisions:
    """The first decisions, in the order of a finite space, that are open.

    Raises:
        Exhausted: there are none.
        UserError: none were found before `max_infeasible` that are infeasible.
    """
    refused: Counter[str] = Counter()
    for decisions in enumerate_decisions(context.spec):
        if context.seen(decisions):
            continue
        reason = context.infeasibility_reason(decisions)
        if reason is None:
            return decisions
        refused[reason] += 1
        if refused.total() == max_infeasible:
            raise _nothing_found(refused)
    raise Exhausted


def _nothing_found(refused: Counter[str]) -> UserError:
    if not refused:
        return UserError(f'{_MAX_DRAWS} draws from the search space brought nothing new.')
    reasons = '\n'.join(f'  {count} times: {reason}' for reason, count in refused.most_common(3))
    return UserError(
        f'No feasible experiment was found: {refused.total()} of the search space are all '
        f'infeasible. Narrow the space or relax its constraints, in another --job_log_dir (with '
        '--fork_study to keep what there is), or add a trial that is feasible with '
        f'python -m paxtune.studies add. The commonest reasons:\n{reasons}'
    )


def complete(spec: pg.DNASpec, given: Decisions, rng: random.Random) -> Decisions:
    """Partial decisions, the others drawn at random.

    Args:
        spec: the space.
        given: some decisions, by id. One that stands inside a choice decides the choice too.
        rng: what the others are drawn from.

    Raises:
        ValueError: they do not fit together, or are none of this space.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([1, pg.floatv(0.0, 1.0)]), y=pg.oneof([1, 2])))
        >>> complete(spec, {'x[=1/2]': 0.5, 'y': 0}, random.Random(0))
        {'x': 1, 'x[=1/2]': 0.5, 'y': 0}
    """
    known = _implied(given) | given
    decisions = fill(spec, known, rng)
    to_dna(spec, decisions)  # Raises where one is out of range.
    for id_, value in known.items():
        if decisions.get(id_) != value:
            raise ValueError(f'{id_ or "the decision"} = {value} does not fit with the others')
    return decisions


def fill(spec: pg.DNASpec, known: Decisions, rng: random.Random) -> Decisions:
    """Decisions that are known where they come up, and those that are missing, drawn at random.

    Raises:
        ValueError: the known indices of one choice are out of range, or leave none for the others.
    """

    def choose(at: Point) -> Sequence[int] | float:
        fixed = [known.get(id_) for id_ in ids(at)]
        if isinstance(at, pg.geno.Float):
            return draw_point(at, rng) if fixed[0] is None else fixed[0]
        indices = [None if each is None else int(each) for each in fixed]
        return _complete_choice(at, indices, rng)

    return decide(spec, choose)


def _implied(given: Decisions) -> Decisions:
    """The choices without which the given decisions would not be there."""
    return {
        id_[: opened.start()]: int(opened[1]) for id_ in given for opened in _OPENED.finditer(id_)
    }


def _complete_choice(
    point: pg.geno.Choices, fixed: Sequence[int | None], rng: random.Random
) -> list[int]:
    """A choice of several candidates, of which some are fixed."""
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
        # The places up to the next fixed one.
        ahead = [place for place in range(len(chosen), len(fixed)) if fixed[place] is not None]
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


def num_changeable(spec: pg.DNASpec, parent: Decisions) -> int:
    """How many decisions can change. If none can, the space holds nothing else."""
    return len(_changeable(spec, parent))


def _changeable(spec: pg.DNASpec, parent: Decisions) -> list[Point]:
    return [point for point in active_points(spec, parent) if _can_change(point)]


def mutate(
    spec: pg.DNASpec, parent: Decisions, rng: random.Random, step: float | None = None
) -> Decisions:
    """Changes exactly one decision, drawn uniformly from those that can change.

    What the changed decision opens is drawn anew; all else stays. A choice of several candidates
    is one decision: one of them is replaced, or, where all candidates are chosen, two change
    places.

    Args:
        spec: the space.
        parent: what is changed.
        rng: what the change is drawn from.
        step: how far numbers move: the standard deviation of a normal distribution, as a share of
            the range on its scale, cut off at its ends. None where they are drawn anew.

    Raises:
        ValueError: no decision can change.
    """
    points = _changeable(spec, parent)
    if not points:
        raise ValueError('no decision can change')
    point = rng.choice(points)
    if isinstance(point, pg.geno.Float):
        kept = parent | {point.id.path: _another_number(point, parent[point.id.path], rng, step)}
    else:
        kept = _change_choice(point, parent, rng)
    return fill(spec, kept, rng)


def _can_change(point: Point) -> bool:
    if isinstance(point, pg.geno.Float):
        return bool(point.min_value < point.max_value)
    if point.distinct and point.num_choices == len(point.candidates):
        return point.num_choices > 1 and not point.sorted
    return len(point.candidates) > 1


def _another_number(
    point: pg.geno.Float, number: float, rng: random.Random, step: float | None
) -> int | float:
    if step is not None:
        share = to_share(point, number)
        for _ in range(_MAX_MOVES):
            moved = rng.gauss(share, step)
            if 0.0 <= moved <= 1.0 and (drawn := from_share(point, moved)) != number:
                return drawn
        if is_integer(point):  # All within a few steps rounds to the same number.
            beside = (int(number) - 1, int(number) + 1)
            return rng.choice([n for n in beside if point.min_value <= n <= point.max_value])
    for _ in range(_MAX_DRAWS):
        drawn = from_share(point, rng.random())
        if drawn != number:
            return drawn
    # The range is a few units in the last place wide.
    other = point.max_value if number == point.min_value else point.min_value
    return int(other) if is_integer(point) else float(other)


def _change_choice(point: pg.geno.Choices, parent: Decisions, rng: random.Random) -> Decisions:
    """The parent's decisions with one choice changed, and without what the old one opened."""
    names = ids(point)
    items = [(int(parent[name]), opened_by(parent, name)) for name in names]
    chosen = [index for index, _ in items]
    place = rng.randrange(len(items))
    taken = chosen if point.distinct else [chosen[place]]
    free = [index for index in range(len(point.candidates)) if index not in taken]
    if free:
        items[place] = (rng.choice(free), {})
    else:
        other = rng.choice([each for each in range(len(items)) if each != place])
        items[place], items[other] = items[other], items[place]
    if point.sorted:
        items.sort(key=lambda item: item[0])
    inside = tuple(f'{name}[=' for name in names)
    kept = {id_: value for id_, value in parent.items() if not id_.startswith(inside)}
    for name, (index, opened) in zip(names, items, strict=True):
        kept[name] = index
        kept |= {f'{name}{rest}': value for rest, value in opened.items()}
    return kept


def opened_by(decisions: Decisions, name: str) -> Decisions:
    """What the choice `name` opens, by what follows its name."""
    return {
        id_[len(name) :]: value for id_, value in decisions.items() if id_.startswith(f'{name}[=')
    }
