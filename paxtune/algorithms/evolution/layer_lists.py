"""Lists in an experiment of which each element is decided by itself, such as a stack of layers."""

import dataclasses
import random
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence

import pyglove as pg

from paxtune.algorithms.encoding.cache import per_spec
from paxtune.algorithms.encoding.sampling import fill
from paxtune.search_space.decisions import Decisions, Point, is_integer, places, points
from trainer.symbolic.errors import UserError

_NAME = re.compile(r'[\w.]*')


@dataclasses.dataclass(frozen=True)
class Gene:
    """What may be decided at one point of a layer.

    Attributes:
        kind: equal where a decision means the same: the candidates of a choice, of which those that
            hold decisions of their own are told by their class alone.
        low: the first index of a candidate, or the least number.
        high: the last index, or the largest number.
    """

    kind: Hashable
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Place:
    """An element of a program, where a layer stands.

    Attributes:
        name: what the ids of its decisions begin with.
        genes: its decision points by the rest of their ids, owners before what they may open.
    """

    name: str
    genes: Mapping[str, Gene]

    def layer(self, decisions: Decisions) -> Decisions:
        """The decisions that stand here, by the rest of their ids."""
        return {
            rest: decisions[self.name + rest]
            for rest in self.genes
            if self.name + rest in decisions
        }

    def taken(self, decisions: Decisions, origin: 'Place') -> Decisions:
        """What of the layer at another place fits here, by the ids that it has here.

        A choice fits where the candidates are the same, a number where it is within the range. What
        a choice opens fits only with the choice.
        """
        found: Decisions = {}
        unfit: tuple[str, ...] = ()
        for rest, value in origin.layer(decisions).items():
            here = self.genes.get(rest)
            same = here is not None and here.kind == origin.genes[rest].kind
            if here is None or not same or not here.low <= value <= here.high:
                unfit += (f'{rest}[=',)
            elif not rest.startswith(unfit):
                found[self.name + rest] = value
        return found


@dataclasses.dataclass(frozen=True)
class Program:
    """A list of which at least two elements hold decisions; the other elements stay as they are.

    Attributes:
        places: the elements that hold decisions, in order.
    """

    places: tuple[Place, ...]

    def __len__(self) -> int:
        return len(self.places)

    def is_open(self, decisions: Decisions) -> bool:
        """Whether the list is there: it may stand inside a candidate that is not chosen."""
        first = self.places[0]
        return first.name + next(iter(first.genes)) in decisions

    def rearranged(
        self,
        spec: pg.DNASpec,
        decisions: Decisions,
        order: Sequence[int | None],
        rng: random.Random,
    ) -> Decisions:
        """Decisions with other layers in some places, and all else as it was.

        Args:
            spec: the space.
            decisions: of which the program is open.
            order: for each place, that whose layer comes there; None for a layer drawn at random.
            rng: what is missing is drawn from it: such layers, and what does not fit in its place.

        Example:
            >>> spec = pg.dna_spec(pg.Dict(layers=[pg.oneof(list('abc')) for _ in range(3)]))
            >>> (program,) = programs(spec)
            >>> parent = {'layers[0]': 0, 'layers[1]': 1, 'layers[2]': 2}
            >>> program.rearranged(spec, parent, [1, 2, 0], random.Random(0))
            {'layers[0]': 1, 'layers[1]': 2, 'layers[2]': 0}
        """
        names = tuple(place.name for place in self.places)
        kept = {id_: value for id_, value in decisions.items() if not id_.startswith(names)}
        for place, index in zip(self.places, order, strict=True):
            if index is not None:
                kept |= place.taken(decisions, self.places[index])
        return fill(spec, kept, rng)


@per_spec
def programs(spec: pg.DNASpec) -> tuple[Program, ...]:
    """The programs of a space, owners before those that stand in their layers.

    A choice of several candidates is one, too, where they may repeat and come in any order.

    Example:
        >>> layers = [pg.oneof([1, pg.oneof([2, 3])]), pg.oneof([4, 5]), 'fixed']
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(0.0, 1.0), layers=layers))
        >>> (program,) = programs(spec)
        >>> [list(place.genes) for place in program.places]
        [['', '[=1/2]'], ['']]
    """
    # By the path of a list, then by that of its element: the points there by the rest of the id.
    lists: dict[str, dict[str, dict[str, Gene]]] = {}
    for point in points(spec):
        gene = _gene(point)
        for id_ in _ids(point):
            for depth, key in enumerate(id_.keys):
                if isinstance(key, int):
                    owner, name = (pg.KeyPath(id_.keys[:n]).path for n in (depth, depth + 1))
                    genes = lists.setdefault(owner, {}).setdefault(name, {})
                    genes[id_.path[len(name) :]] = gene
    bound = {each.id.path for each in points(spec) if _is_bound(each)}
    return tuple(
        Program(tuple(Place(*each) for each in of.items()))
        for owner, of in lists.items()
        if len(of) > 1 and owner not in bound
    )


def open_programs(spec: pg.DNASpec, decisions: Decisions) -> list[Program]:
    """The programs that stand in an experiment with these decisions."""
    return [program for program in programs(spec) if program.is_open(decisions)]


def drawn_program(among: Sequence[Program], rng: random.Random) -> Program:
    """One of several programs, such that a layer of any has even chances."""
    return rng.choices(among, [len(program) for program in among])[0]


def require_programs(spec: pg.DNASpec, who: str, instead: str) -> None:
    """Raises UserError where a space holds no program.

    Args:
        spec: the space.
        who: what has nothing to do there, for the message.
        instead: what can be used there.
    """
    if not programs(spec):
        raise UserError(
            f'{who} changes the layers of a list, and the search space has no list of which at '
            f'least two elements hold decisions. Use {instead}.'
        )


def _ids(point: Point) -> Iterator[pg.KeyPath]:
    if isinstance(point, pg.geno.Float):
        yield point.id
    else:
        yield from (place.id for place in places(point))


def _is_bound(point: Point) -> bool:
    """Whether several candidates are chosen that depend on each other."""
    if isinstance(point, pg.geno.Float) or point.num_choices == 1:
        return False
    return bool(point.distinct or point.sorted)


def _gene(point: Point) -> Gene:
    if isinstance(point, pg.geno.Float):
        return Gene(is_integer(point), point.min_value, point.max_value)
    texts = point.literal_values or [None] * len(point.candidates)
    labels = tuple(
        _class_of(text) if candidate.elements else (type(text), text)
        for text, candidate in zip(texts, point.candidates, strict=True)
    )
    kind = (labels, point.num_choices, point.distinct, point.sorted)
    return Gene(kind, 0, len(labels) - 1)


def _class_of(text: object) -> str:
    """The class of a candidate that is shown with its fields; '' for a list or a mapping."""
    found = _NAME.match(str(text))
    return found.group() if found else ''
