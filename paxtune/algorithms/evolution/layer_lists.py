"""Lists in an experiment whose elements are decided separately, such as a stack of layers."""

import dataclasses
import random
import re
from collections.abc import Hashable, Mapping, Sequence

import pyglove as pg

from paxtune.algorithms.encoding.cache import per_spec
from paxtune.algorithms.encoding.sampling import fill
from paxtune.search_space.decisions import (
    DecisionPoint,
    Decisions,
    decision_points,
    is_integer,
    slots,
)
from trainer.symbolic.errors import UserError

_ARGUMENTS = re.compile(r'[^\w.].*', re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Gene:
    """Decision point of a layer.

    Attributes:
        kind: equal for points whose decisions have the same meaning, that is, the same candidates.
            Candidates with decisions inside are compared by class.
        low: first index of a candidate, or minimum of a range.
        high: last index, or maximum.
    """

    kind: Hashable
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class LayerSlot:
    """Element of a layer list that holds decisions.

    Attributes:
        prefix: prefix of the ids of its decisions.
        genes: decision points by the rest of their ids, parents before their children.
    """

    prefix: str
    genes: Mapping[str, Gene]

    def layer(self, decisions: Decisions) -> Decisions:
        """Decisions of this slot by the rest of their ids."""
        return {
            rest: decisions[self.prefix + rest]
            for rest in self.genes
            if self.prefix + rest in decisions
        }

    def transplant(self, decisions: Decisions, origin: 'LayerSlot') -> Decisions:
        """Decisions of the layer in another slot that fit here, by their ids here.

        A choice fits if the candidates are the same, a number if it is in the range. The children
        of a choice fit only with the choice.
        """
        found: Decisions = {}
        unfit: tuple[str, ...] = ()
        for rest, value in origin.layer(decisions).items():
            here = self.genes.get(rest)
            same = here is not None and here.kind == origin.genes[rest].kind
            if here is None or not same or not here.low <= value <= here.high:
                unfit += (f'{rest}[=',)
            elif not rest.startswith(unfit):
                found[self.prefix + rest] = value
        return found


@dataclasses.dataclass(frozen=True)
class LayerList:
    """A list with at least two elements that hold decisions: `slots`, in order."""

    slots: tuple[LayerSlot, ...]

    def __len__(self) -> int:
        return len(self.slots)

    def is_active(self, decisions: Decisions) -> bool:
        """Returns False if the list is inside a candidate that is not chosen."""
        first = self.slots[0]
        return first.prefix + next(iter(first.genes)) in decisions

    def rearrange(
        self,
        spec: pg.DNASpec,
        decisions: Decisions,
        order: Sequence[int | None],
        rng: random.Random,
    ) -> Decisions:
        """Rearranges the layers of an active list; other decisions stay.

        The order holds, for each slot, the index of the layer that it gets, or None for a random
        one. Decisions that do not fit in their slot are drawn.

        Example:
            >>> spec = pg.dna_spec(pg.Dict(layers=[pg.oneof(list('abc')) for _ in range(3)]))
            >>> (found,) = layer_lists(spec)
            >>> parent = {'layers[0]': 0, 'layers[1]': 1, 'layers[2]': 2}
            >>> found.rearrange(spec, parent, [1, 2, 0], random.Random(0))
            {'layers[0]': 1, 'layers[1]': 2, 'layers[2]': 0}
        """
        prefixes = tuple(slot.prefix for slot in self.slots)
        kept = {id_: value for id_, value in decisions.items() if not id_.startswith(prefixes)}
        for slot, index in zip(self.slots, order, strict=True):
            if index is not None:
                kept |= slot.transplant(decisions, self.slots[index])
        return fill(spec, kept, rng)


@per_spec
def layer_lists(spec: pg.DNASpec) -> tuple[LayerList, ...]:
    """Layer lists of a space, outer lists before those inside their layers.

    A choice of several candidates is one, too, if they may repeat and have any order.

    Example:
        >>> layers = [pg.oneof([1, pg.oneof([2, 3])]), pg.oneof([4, 5]), 'fixed']
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(0.0, 1.0), layers=layers))
        >>> (found,) = layer_lists(spec)
        >>> [list(slot.genes) for slot in found.slots]
        [['', '[=1/2]'], ['']]
    """
    # Genes by the path of the list, the path of the element, and the rest of the id.
    found: dict[str, dict[str, dict[str, Gene]]] = {}
    for point in decision_points(spec):
        gene = _gene(point)
        for id_ in (slot.id for slot in slots(point)):
            for depth, key in enumerate(id_.keys):
                if isinstance(key, int):
                    parent, prefix = (pg.KeyPath(id_.keys[:n]).path for n in (depth, depth + 1))
                    slot = found.setdefault(parent, {}).setdefault(prefix, {})
                    slot[id_.path[len(prefix) :]] = gene
    constrained = {each.id.path for each in decision_points(spec) if _is_constrained(each)}
    return tuple(
        LayerList(tuple(LayerSlot(*each) for each in genes.items()))
        for parent, genes in found.items()
        if len(genes) > 1 and parent not in constrained
    )


def active_layer_lists(spec: pg.DNASpec, decisions: Decisions) -> list[LayerList]:
    """Layer lists that are active in these decisions."""
    return [each for each in layer_lists(spec) if each.is_active(decisions)]


def draw_layer_list(lists: Sequence[LayerList], rng: random.Random) -> LayerList:
    """Draws one of several lists, so that each layer has the same probability."""
    return rng.choices(lists, [len(each) for each in lists])[0]


def require_layer_lists(spec: pg.DNASpec, who: str, instead: str) -> None:
    """Raises UserError, with the operator to use instead, if a space has no layer list."""
    if not layer_lists(spec):
        raise UserError(
            f'{who} needs a list with at least two elements that hold decisions. The search space '
            f'has none. Use {instead}.'
        )


def _is_constrained(point: DecisionPoint) -> bool:
    if isinstance(point, pg.geno.Float) or point.num_choices == 1:
        return False
    return bool(point.distinct or point.sorted)


def _gene(point: DecisionPoint) -> Gene:
    if isinstance(point, pg.geno.Float):
        return Gene(is_integer(point), point.min_value, point.max_value)
    texts = point.literal_values or [None] * len(point.candidates)
    labels = tuple(
        # The name of the class; '' for a list or a mapping.
        _ARGUMENTS.sub('', str(text)) if candidate.elements else (type(text), text)
        for text, candidate in zip(texts, point.candidates, strict=True)
    )
    kind = (labels, point.num_choices, point.distinct, point.sorted)
    return Gene(kind, 0, len(labels) - 1)
