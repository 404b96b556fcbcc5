"""Children of two parents."""

import random
from collections import Counter
from collections.abc import Sequence

import pyglove as pg

from paxtune.algorithms.encoding.sampling import draw_point, fill, opened_by
from paxtune.algorithms.evolution.layer_lists import drawn_program, open_programs, require_programs
from paxtune.search_space.decisions import Decisions, Point, decide, ids
from trainer.symbolic.component import Component


class Crossover(Component):
    """Makes a child of two parents."""

    def cross(
        self, spec: pg.DNASpec, mother: Decisions, father: Decisions, rng: random.Random
    ) -> Decisions:
        """A legal child that has what either parent has; it may be like one of them.

        Args:
            spec: the space.
            mother: the first parent.
            father: the second one.
            rng: what is taken from whom is drawn from it.
        """
        raise NotImplementedError(type(self).__name__)

    def check_space(self, spec: pg.DNASpec) -> None:
        """Called before the first trial of a study.

        Raises:
            UserError: all children would be like their first parents.
        """


class UniformCrossover(Crossover):
    """Each decision from one of two parents, drawn with even chances.

    What a choice opens comes with it: from the parent that has it, decision by decision from either
    where both have the same candidate. Of a choice of several candidates, each place is a decision;
    where candidates must differ or be sorted, what both parents chose stays, and the rest is drawn
    from what one of them chose.

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


class LayerRangeCrossover(Crossover):
    """The layers of one program between two places from the second parent, all else from the first.

    A program is a list of which at least two elements hold decisions, its layers, as in
    `programs.py`. So layers that do well beside each other come together, in the places that they
    had: two-point crossover whose genes are layers. Where no program is open in both parents, the
    child is like the first.

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
        shared = [each for each in open_programs(spec, mother) if each.is_open(father)]
        if not shared:
            return mother
        program = drawn_program(shared, rng)
        begin, end = sorted(rng.sample(range(len(program) + 1), 2))
        names = tuple(place.name for place in program.places[begin:end])
        known = {id_: value for id_, value in mother.items() if not id_.startswith(names)}
        known |= {id_: value for id_, value in father.items() if id_.startswith(names)}
        return fill(spec, known, rng)

    def check_space(self, spec: pg.DNASpec) -> None:
        require_programs(spec, type(self).__name__, 'UniformCrossover()')


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
