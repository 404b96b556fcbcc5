"""Children of two parents."""

import random
from collections import Counter
from collections.abc import Sequence

import pyglove as pg

from paxtune.algorithms.sampling import draw_point, opened_by
from paxtune.decisions import Decisions, Point, decide, ids


def crossover(
    spec: pg.DNASpec, mother: Decisions, father: Decisions, rng: random.Random
) -> Decisions:
    """Each decision from one of two parents, drawn with even chances: uniform crossover.

    What a choice opens comes with it: from the parent that has it, decision by decision from either
    where both have the same candidate. Of a choice of several candidates, each place is a decision;
    where candidates must differ or be sorted, what both parents chose stays, and the rest is drawn
    from what one of them chose.

    G. Syswerda, "Uniform crossover in genetic algorithms", ICGA 1989.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([1, 2, 3]), y=pg.floatv(0.0, 1.0)))
        >>> child = crossover(spec, {'x': 0, 'y': 0.5}, {'x': 1, 'y': 0.5}, random.Random(0))
        >>> child['x'] in (0, 1), child['y']
        (True, 0.5)
    """
    parents = [dict(mother), dict(father)]

    def choose(point: Point) -> Sequence[int] | float:
        names = ids(point)
        having = [parent for parent in parents if names[0] in parent]
        if not having:
            return draw_point(point, rng)
        if isinstance(point, pg.geno.Float):
            return rng.choice(having)[names[0]]
        chosen = [[int(parent[name]) for name in names] for parent in having]
        if not point.distinct and not point.sorted:
            return [rng.choice(candidates) for candidates in zip(*chosen, strict=True)]
        child = _arranged(point, chosen, rng)
        for parent in having:
            _rearrange(parent, names, child)
        return child

    return decide(spec, choose)


def _arranged(
    point: pg.geno.Choices, chosen: Sequence[Sequence[int]], rng: random.Random
) -> list[int]:
    """What a child chooses, of candidates that must differ or be sorted."""
    if len(chosen) == 1:
        return list(chosen[0])
    mother, father = chosen
    if not point.sorted:
        return _mixed_in_place(mother, father, rng)
    common = Counter(mother) & Counter(father)
    one_has = (Counter(mother) | Counter(father)) - common
    drawn = rng.sample(sorted(one_has.elements()), len(mother) - common.total())
    return sorted([*common.elements(), *drawn])


def _mixed_in_place(mother: Sequence[int], father: Sequence[int], rng: random.Random) -> list[int]:
    """Different candidates, each in the place that it has in a parent as far as that can be."""
    child: list[int | None] = [None] * len(mother)
    places = list(range(len(mother)))
    places.sort(key=lambda place: mother[place] != father[place])  # Where they agree, first.
    for place in places:
        free = [each for each in (mother[place], father[place]) if each not in child]
        child[place] = rng.choice(free) if free else None
    rest = [each for each in dict.fromkeys([*mother, *father]) if each not in child]
    rng.shuffle(rest)
    return [rest.pop() if each is None else each for each in child]


def _rearrange(parent: Decisions, names: Sequence[str], child: Sequence[int]) -> None:
    """Moves what a parent's candidates open to the places that they have in the child."""
    opened: dict[int, list[Decisions]] = {}
    for name in names:
        inside = opened_by(parent, name)
        opened.setdefault(int(parent[name]), []).append(inside)
        for rest in inside:
            del parent[f'{name}{rest}']
    for name, candidate in zip(names, child, strict=True):
        if opened.get(candidate):
            inside = opened[candidate].pop(0)
            parent |= {f'{name}{rest}': value for rest, value in inside.items()}
