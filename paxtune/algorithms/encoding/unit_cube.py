"""A search space as a box: each experiment a row of numbers from 0 to 1.

Models and optimizers that know no conditions see every decision that there may be to make. Those
that the others do not open are missing (NaN) in a row, and are left out of the decisions that are
made of one.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyglove as pg

from paxtune.algorithms.encoding.scaling import from_share, to_share
from paxtune.search_space.decisions import Decisions, Point, decide, numeric_candidates, places


@dataclasses.dataclass(frozen=True)
class Feature:
    """A column: one decision.

    Attributes:
        id: of the decision.
        kind: 'number' for a range; 'ordinal' for a choice between numbers, which have an order;
            'category' for any other choice.
        order: the candidates of a choice, those of an ordinal one by their numbers; else empty.
        owner: the index of the feature that opens it; -1 where it is always open.
        opened_by: the candidate of the owner that opens it.
    """

    id: str
    kind: Literal['number', 'ordinal', 'category']
    order: tuple[int, ...] = ()
    owner: int = -1
    opened_by: int = -1


class FlatSpace:
    """The box of a search space.

    A number stands in a row at its share of the range, on its scale; the candidate at place i of n,
    in the feature's order, at (i + ½) / n, and all from i / n to (i + 1) / n mean it. So what is
    uniform in the box is uniform in the space.

    Attributes:
        spec: the search space.
        features: the columns, owners before what they open.

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
        self._points: dict[str, pg.geno.Float] = {}
        self._add(spec, -1, -1)
        self._index = {feature.id: i for i, feature in enumerate(self.features)}
        self._ranks = {
            feature.id: {candidate: rank for rank, candidate in enumerate(feature.order)}
            for feature in self.features
        }

    def _add(self, spec: pg.DNASpec, owner: int, opened_by: int) -> None:
        if isinstance(spec, pg.geno.Space):
            for element in spec.elements:
                self._add(element, owner, opened_by)
        elif isinstance(spec, pg.geno.Float):
            self._points[spec.id.path] = spec
            self.features.append(Feature(spec.id.path, 'number', (), owner, opened_by))
        else:
            for place in places(spec):
                # Of several that must differ or be in order, the number alone says little.
                alone = not (spec.num_choices > 1 and (spec.distinct or spec.sorted))
                numbers = numeric_candidates(place) if alone else []
                count = len(place.candidates)
                order = sorted(range(count), key=numbers.__getitem__) if numbers else range(count)
                kind: Literal['ordinal', 'category'] = 'ordinal' if numbers else 'category'
                index = len(self.features)
                self.features.append(Feature(place.id.path, kind, tuple(order), owner, opened_by))
                for candidate, opened in enumerate(place.candidates):
                    self._add(opened, index, candidate)

    def __len__(self) -> int:
        """The number of columns."""
        return len(self.features)

    def encode(self, decisions: Decisions) -> np.ndarray:
        """The row of decisions: [len(self)], float64, NaN for what they do not open."""
        row = np.full(len(self), math.nan)
        for id_, value in decisions.items():
            row[self._index[id_]] = self.share(id_, value)
        return row

    def share(self, id_: str, value: int | float) -> float:
        """What stands in a row for one decision."""
        if id_ in self._points:
            return to_share(self._points[id_], value)
        ranks = self._ranks[id_]
        return (ranks[int(value)] + 0.5) / len(ranks)

    def decode(self, row: Sequence[float] | np.ndarray) -> Decisions:
        """The decisions that a row means.

        Where several candidates must differ, one that is taken becomes the next that is free.

        Args:
            row: [len(self)], from 0 to 1. What is not open with the others is not looked at.
        """

        def choose(point: Point) -> Sequence[int] | float:
            if isinstance(point, pg.geno.Float):
                return from_share(point, float(row[self._index[point.id.path]]))
            chosen: list[int] = []
            for place in places(point):
                order = self.features[self._index[place.id.path]].order
                count = len(order)
                rank = min(int(max(row[self._index[place.id.path]], 0.0) * count), count - 1)
                from_rank = (order[(rank + i) % count] for i in range(count))
                chosen.append(next(i for i in from_rank if not (point.distinct and i in chosen)))
            return sorted(chosen) if point.sorted else chosen

        return decide(self.spec, choose)
