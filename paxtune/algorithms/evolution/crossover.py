"""Crossover: children of two parents."""

import random
from collections import Counter
from collections.abc import Sequence

import pyglove as pg

from paxtune.algorithms.encoding.sampling import child_decisions, draw_point, fill
from paxtune.algorithms.evolution.layer_lists import (
    active_layer_lists,
    draw_layer_list,
    require_layer_lists,
)
from paxtune.search_space.decisions import DecisionPoint, Decisions, decide, slot_ids
from trainer.symbolic.component import Component


class Crossover(Component):
    """Derives a child from two parents."""

    def cross(
        self, spec: pg.DNASpec, mother: Decisions, father: Decisions, rng: random.Random
    ) -> Decisions:
        """Returns a legal child with decisions of both parents; it may equal one of them."""
        raise NotImplementedError(type(self).__name__)

    def check_space(self, spec: pg.DNASpec) -> None:
        """Raises UserError before the first trial if every child is its first parent."""


class UniformCrossover(Crossover):
    """Takes each decision from either parent with equal probability.

    Conditional decisions come from a parent in which they are active. Each slot of a choice of
    several candidates is a decision. If candidates must be distinct or sorted, the common choices
    of both parents stay. The rest is drawn from the choices of one parent.

    G. Syswerda, "Uniform crossover in genetic algorithms", ICGA 1989.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([1, 2, 3]), y=pg.floatv(0.0, 1.0)))
        >>> mother, father = {'x': 0, 'y': 0.5}, {'x': 1, 'y': 0.5}
        >>> child = UniformCrossover().cross(spec, mother, father, random.Random(0))
        >>> child['x'] in (0, 1), child['y']
        (True, 0.5)
    """

    def cross(
        self, spec: pg.DNASpec, mother: Decisions, father: Decisions, rng: random.Random
    ) -> Decisions:
        parents = [dict(mother), dict(father)]

        def choose(point: DecisionPoint) -> Sequence[int] | float:
            names = slot_ids(point)
            active = [parent for parent in parents if names[0] in parent]
            if not active:
                return draw_point(point, rng)
            if isinstance(point, pg.geno.Float):
                return rng.choice(active)[names[0]]
            chosen = [[int(parent[name]) for name in names] for parent in active]
            if not point.distinct and not point.sorted:
                return [rng.choice(candidates) for candidates in zip(*chosen, strict=True)]
            child = _cross_choice(point, chosen, rng)
            for parent in active:
                _rearrange(parent, names, child)
            return child

        return decide(spec, choose)


class LayerRangeCrossover(Crossover):
    """Takes a range of one layer list from the second parent, all else from the first.

    Two-point crossover whose genes are layers (`layer_lists`): neighbouring layers stay together,
    in their slots. The child equals the first parent if no list is active in both.

    K. A. De Jong, "An analysis of the behavior of a class of genetic adaptive systems", 1975.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(layers=[pg.oneof(list('ab')) for _ in range(6)]))
        >>> mother, father = ({f'layers[{i}]': index for i in range(6)} for index in (0, 1))
        >>> child = LayerRangeCrossover().cross(spec, mother, father, random.Random(3))
        >>> list(child.values())
        [0, 1, 1, 1, 0, 0]
    """

    def cross(
        self, spec: pg.DNASpec, mother: Decisions, father: Decisions, rng: random.Random
    ) -> Decisions:
        shared = [each for each in active_layer_lists(spec, mother) if each.is_active(father)]
        if not shared:
            return mother
        drawn = draw_layer_list(shared, rng)
        begin, end = sorted(rng.sample(range(len(drawn) + 1), 2))
        prefixes = tuple(slot.prefix for slot in drawn.slots[begin:end])
        known = {id_: value for id_, value in mother.items() if not id_.startswith(prefixes)}
        known |= {id_: value for id_, value in father.items() if id_.startswith(prefixes)}
        return fill(spec, known, rng)

    def check_space(self, spec: pg.DNASpec) -> None:
        require_layer_lists(spec, type(self).__name__, 'UniformCrossover()')


def _cross_choice(
    point: pg.geno.Choices, chosen: Sequence[Sequence[int]], rng: random.Random
) -> list[int]:
    """Crosses choices of candidates that must be distinct or sorted."""
    if len(chosen) == 1:
        return list(chosen[0])
    mother, father = chosen
    if not point.sorted:
        return _cross_slots(mother, father, rng)
    common = Counter(mother) & Counter(father)
    one_has = (Counter(mother) | Counter(father)) - common
    drawn = rng.sample(sorted(one_has.elements()), len(mother) - common.total())
    return sorted([*common.elements(), *drawn])


def _cross_slots(mother: Sequence[int], father: Sequence[int], rng: random.Random) -> list[int]:
    """Crosses distinct candidates, each in its slot in a parent where possible."""
    child: list[int | None] = [None] * len(mother)
    order = list(range(len(mother)))
    order.sort(key=lambda slot: mother[slot] != father[slot])  # Equal candidates first.
    for slot in order:
        free = [each for each in (mother[slot], father[slot]) if each not in child]
        child[slot] = rng.choice(free) if free else None
    rest = [each for each in dict.fromkeys([*mother, *father]) if each not in child]
    rng.shuffle(rest)
    return [rest.pop() if each is None else each for each in child]


def _rearrange(parent: Decisions, names: Sequence[str], child: Sequence[int]) -> None:
    """Moves the children of a parent's candidates to the slots of the child."""
    children: dict[int, list[Decisions]] = {}
    for name in names:
        inner = child_decisions(parent, name)
        children.setdefault(int(parent[name]), []).append(inner)
        for rest in inner:
            del parent[f'{name}{rest}']
    for name, candidate in zip(names, child, strict=True):
        if children.get(candidate):
            inner = children[candidate].pop(0)
            parent |= {f'{name}{rest}': value for rest, value in inner.items()}
