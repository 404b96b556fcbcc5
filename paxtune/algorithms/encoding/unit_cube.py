"""Encoding of decisions as rows of the unit cube.

Models and optimizers without conditions see all decision points. Inactive ones are missing (NaN) in
a row, and are omitted from decoded decisions.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyglove as pg

from paxtune.algorithms.encoding.scaling import from_unit, to_unit_function
from paxtune.search_space.decisions import (
    DecisionPoint,
    Decisions,
    decide,
    numeric_candidates,
    slots,
)


@dataclasses.dataclass(frozen=True)
class Feature:
    """Column of a row: one decision.

    Attributes:
        id: id of the decision.
        kind: 'number' for a range; 'ordinal' for a choice between numbers; 'category' for any
            other choice.
        order: candidates of a choice, sorted by number if ordinal; empty for a range.
        numbers: numbers that an ordinal choice is between, by candidate.
        parent: index of the feature that activates this one; -1 if it is always active.
        condition: candidate of the parent that activates it.
    """

    id: str
    kind: Literal['number', 'ordinal', 'category']
    order: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    parent: int = -1
    condition: int = -1


def depths(parents: Sequence[int]) -> list[int]:
    """Number of features above each, given the index of its parent; -1 for none."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


class FlatSpace:
    """Flat encoding of a search space.

    A number is encoded as its unit value on the scale of its range. Candidate i of n, in the
    feature's order, is encoded as (i + ½) / n. Its cell reaches from i / n to (i + 1) / n. A
    uniform distribution over rows is uniform over the space.

    Attributes:
        spec: search space.
        features: columns, parents before their children.
        ranges: ranges by the id of their decision.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([pg.floatv(1e-4, 1.0, 'log'), 'none'])))
        >>> space = FlatSpace(spec)
        >>> space.encode({'x': 0, 'x[=0/2]': 0.01})
        array([0.25, 0.5 ])
        >>> space.encode({'x': 1})
        array([0.75,  nan])
        >>> space.decode([0.9, 0.3])
        {'x': 1}
    """

    def __init__(self, spec: pg.DNASpec) -> None:
        self.spec = spec
        self.features: list[Feature] = []
        self.ranges: dict[str, pg.geno.Float] = {}
        self._add(spec, -1, -1)
        self._to_unit = {id_: to_unit_function(each) for id_, each in self.ranges.items()}
        self._index = {feature.id: i for i, feature in enumerate(self.features)}
        self._ranks = {
            feature.id: {candidate: rank for rank, candidate in enumerate(feature.order)}
            for feature in self.features
        }

    def _add(self, spec: pg.DNASpec, parent: int, condition: int) -> None:
        if isinstance(spec, pg.geno.Space):
            for element in spec.elements:
                self._add(element, parent, condition)
        elif isinstance(spec, pg.geno.Float):
            self.ranges[spec.id.path] = spec
            self.features.append(Feature(spec.id.path, 'number', (), (), parent, condition))
        else:
            for slot in slots(spec):
                # The order has no meaning for one of several that must be distinct or sorted.
                alone = not (spec.num_choices > 1 and (spec.distinct or spec.sorted))
                numbers = tuple(numeric_candidates(slot)) if alone else ()
                count = len(slot.candidates)
                order = sorted(range(count), key=numbers.__getitem__) if numbers else range(count)
                kind: Literal['ordinal', 'category'] = 'ordinal' if numbers else 'category'
                index = len(self.features)
                self.features.append(
                    Feature(slot.id.path, kind, tuple(order), numbers, parent, condition)
                )
                for candidate, opened in enumerate(slot.candidates):
                    self._add(opened, index, candidate)

    def __len__(self) -> int:
        return len(self.features)

    def encode(self, decisions: Decisions) -> np.ndarray:
        """Encodes decisions as a row [features], float64, NaN for inactive ones."""
        row = np.full(len(self), math.nan)
        for id_, value in decisions.items():
            row[self._index[id_]] = self.to_unit_value(id_, value)
        return row

    def to_unit_value(self, id_: str, value: int | float) -> float:
        """Encodes one decision."""
        if id_ in self.ranges:
            return self._to_unit[id_](value)
        ranks = self._ranks[id_]
        return (ranks[int(value)] + 0.5) / len(ranks)

    def decode(self, row: Sequence[float] | np.ndarray) -> Decisions:
        """Decodes a row of unit values [features]; inactive features are ignored.

        Where candidates must be distinct, a taken one is replaced by the next free one.
        """

        def choose(point: DecisionPoint) -> Sequence[int] | float:
            if isinstance(point, pg.geno.Float):
                return from_unit(point, float(row[self._index[point.id.path]]))
            chosen: list[int] = []
            for slot in slots(point):
                order = self.features[self._index[slot.id.path]].order
                count = len(order)
                rank = min(int(max(row[self._index[slot.id.path]], 0.0) * count), count - 1)
                from_rank = (order[(rank + i) % count] for i in range(count))
                chosen.append(next(i for i in from_rank if not (point.distinct and i in chosen)))
            return sorted(chosen) if point.sorted else chosen

        return decide(self.spec, choose)
