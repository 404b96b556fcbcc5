"""Random draws from a search space, and small random changes."""

import math
import random
from collections.abc import Sequence

import pyglove as pg

from paxtune.algorithms.base import Request
from paxtune.decisions import Decisions, Point, active_points, decide, from_dna, ids, size

_MAX_DRAWS = 3000


def draw(spec: pg.DNASpec, rng: random.Random) -> Decisions:
    """Decisions at random: numbers uniform on their scale, choices uniform over candidates."""
    return decide(spec, lambda point: draw_point(point, rng))


def draw_point(point: Point, rng: random.Random) -> list[int] | float:
    """A decision at one point."""
    if isinstance(point, pg.geno.Float):
        return _draw_number(point, rng)
    candidates = range(len(point.candidates))
    if point.distinct:
        chosen = rng.sample(candidates, point.num_choices)
    else:
        chosen = rng.choices(candidates, k=point.num_choices)
    return sorted(chosen) if point.sorted else chosen


def _draw_number(point: pg.geno.Float, rng: random.Random) -> float:
    low, high, share = point.min_value, point.max_value, rng.random()
    if point.scale in ('log', 'rlog'):
        number = math.exp((1 - share) * math.log(low) + share * math.log(high))
        if point.scale == 'rlog':
            number = low + high - number
    else:
        number = (1 - share) * low + share * high
    return float(min(max(number, low), high))


def draw_unseen(request: Request, rng: random.Random) -> Decisions:
    """Decisions at random that no earlier trial has."""
    for _ in range(_MAX_DRAWS):
        decisions = draw(request.spec, rng)
        # A number drawn from a range does not come twice: no need to read the history.
        if _holds_range(request.spec, decisions) or not request.seen(decisions):
            return decisions
    if size(request.spec) is None:
        raise RuntimeError(f'no experiment that was not tried came up in {_MAX_DRAWS} draws')
    # Nearly all of the space was tried: take the first of the rest.
    for dna in request.spec.iter_dna(attach_spec=False):
        decisions = from_dna(request.spec, dna)
        if not request.seen(decisions):
            return decisions
    raise RuntimeError('all experiments of the space were tried')


def _holds_range(spec: pg.DNASpec, decisions: Decisions) -> bool:
    return any(isinstance(point, pg.geno.Float) for point in active_points(spec, decisions))


def mutate(spec: pg.DNASpec, parent: Decisions, rng: random.Random) -> Decisions:
    """Changes exactly one decision, drawn uniformly from those that can change.

    What the changed decision opens is drawn anew; all else stays. A choice of several candidates
    is one decision: one of them is replaced, or, where all candidates are chosen, two change
    places.

    Raises:
        ValueError: no decision can change.
    """
    points = [point for point in active_points(spec, parent) if _can_change(point)]
    if not points:
        raise ValueError('no decision can change')
    point = rng.choice(points)
    if isinstance(point, pg.geno.Float):
        kept = parent | {point.id.path: _another_number(point, parent[point.id.path], rng)}
    else:
        kept = _change_choice(point, parent, rng)

    def choose(at: Point) -> Sequence[int] | float:
        known = [kept[id_] for id_ in ids(at) if id_ in kept]
        if not known:
            return draw_point(at, rng)
        return known[0] if isinstance(at, pg.geno.Float) else [int(index) for index in known]

    return decide(spec, choose)


def _can_change(point: Point) -> bool:
    if isinstance(point, pg.geno.Float):
        return True
    if point.distinct and point.num_choices == len(point.candidates):
        return point.num_choices > 1 and not point.sorted
    return len(point.candidates) > 1


def _another_number(point: pg.geno.Float, number: float, rng: random.Random) -> float:
    for _ in range(_MAX_DRAWS):
        drawn = _draw_number(point, rng)
        if drawn != number:
            return drawn
    # The range is a few units in the last place wide.
    return float(point.max_value if number == point.min_value else point.min_value)


def _change_choice(point: pg.geno.Choices, parent: Decisions, rng: random.Random) -> Decisions:
    """The parent's decisions with one choice changed, and without what the old one opened."""
    names = ids(point)
    items = [(int(parent[name]), _opened(parent, name)) for name in names]
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


def _opened(decisions: Decisions, name: str) -> Decisions:
    """What the choice `name` opens, by what follows its name."""
    return {
        id_[len(name) :]: value for id_, value in decisions.items() if id_.startswith(f'{name}[=')
    }
