"""Encoding of rows of unit values as points of a metric space."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pyglove as pg

from paxtune.algorithms.encoding.cache import per_spec
from paxtune.algorithms.encoding.unit_cube import FlatSpace, depths
from paxtune.search_space import decisions
from paxtune.search_space.decisions import Decisions

_INACTIVE = 0.5  # Coordinate of an inactive number.


@dataclasses.dataclass(frozen=True)
class EncodingSpec:
    """Static description of a space.

    Attributes:
        counts: number of candidates of each feature; 0 for a number.
        are_categorical: True for each feature whose cells have no order.
        parents: index of the feature that activates each feature; -1 if it is always active.
        conditions: cell of the parent that activates each feature.
        permutation_constraints: (indices of features, distinct, sorted): features whose cells must
            differ, be sorted, or both.
        integer_dims: (index of a feature, minimum, maximum, is logarithmic).
    """

    counts: tuple[int, ...]
    are_categorical: tuple[bool, ...]
    parents: tuple[int, ...]
    conditions: tuple[int, ...]
    permutation_constraints: tuple[tuple[tuple[int, ...], bool, bool], ...]
    integer_dims: tuple[tuple[int, int, int, bool], ...]

    @functools.cached_property
    def columns(self) -> np.ndarray:
        """Feature of each column of a point: [columns], int32.

        A number or an ordinal choice has one column, a category one for each candidate.
        """
        widths = [
            count if is_category else 1
            for count, is_category in zip(self.counts, self.are_categorical, strict=True)
        ]
        return np.repeat(np.arange(len(widths), dtype=np.int32), widths)


def encoding_spec(space: FlatSpace) -> EncodingSpec:
    """Describes a flat space."""
    index = {feature.id: i for i, feature in enumerate(space.features)}
    counts = [len(feature.order) for feature in space.features]
    permutation_constraints, integer_dims = [], []
    for point in decisions.decision_points(space.spec):
        if isinstance(point, pg.geno.Float):
            if decisions.is_integer(point):
                ends = int(point.min_value), int(point.max_value)
                integer_dims.append((index[point.id.path], *ends, point.scale in ('log', 'rlog')))
        elif point.num_choices > 1 and (point.distinct or point.sorted):
            members = tuple(index[id_] for id_ in decisions.slot_ids(point))
            permutation_constraints.append((members, bool(point.distinct), bool(point.sorted)))
    return EncodingSpec(
        tuple(counts),
        tuple(feature.kind == 'category' for feature in space.features),
        tuple(feature.parent for feature in space.features),
        tuple(feature.condition for feature in space.features),
        tuple(permutation_constraints),
        tuple(integer_dims),
    )


@functools.lru_cache(maxsize=32)
def encoder(encoding: EncodingSpec) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
    """Function that encodes rows as points.

    Returns:
        A function of rows [B, features]. It returns the rows, with each unit value in the middle of
        its cell; the points [B, columns]; a mask of the active features [B, features]. Inactive
        features have the same coordinates in all points.
    """
    counts = np.array(encoding.counts)
    cells = np.maximum(counts, 1)
    depth = np.array(depths(encoding.parents), int)
    parents, conditions = np.array(encoding.parents), np.array(encoding.conditions)
    levels = [np.flatnonzero(depth == level) for level in range(1, max(depth, default=0) + 1)]

    def encode(rows: np.ndarray) -> tuple[np.ndarray, ...]:
        chosen = np.clip(np.floor(rows * cells), 0, cells - 1).astype(np.int32)
        for members, distinct, is_sorted in encoding.permutation_constraints:
            chosen[:, members] = _repaired(
                chosen[:, members], int(counts[members[0]]), distinct, is_sorted
            )
        rows = np.where(counts > 0, (chosen + 0.5) / cells, rows)
        for i, low, high, is_log in encoding.integer_dims:
            rows[:, i] = _rounded(rows[:, i], low, high, is_log)
        is_active = np.ones(rows.shape, bool)
        for level in levels:
            is_met = chosen[:, parents[level]] == conditions[level]
            is_active[:, level] = is_active[:, parents[level]] & is_met
        return rows, _columns(encoding, rows, chosen, is_active), is_active

    return encode


@per_spec
def points_function(spec: pg.DNASpec) -> Callable[[Sequence[Decisions]], np.ndarray]:
    """Function that encodes decisions of a space, N times, as points [N, columns].

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 4.0), y=pg.oneof(['a', 'b'])))
        >>> points_function(spec)([{'x': 1.0, 'y': 1}]).round(2).tolist()
        [[0.25, 0.0, 0.71]]
    """
    space, points = FlatSpace(spec), points_of_rows(spec)
    return lambda of: points(np.array([space.encode(each) for each in of]))


@per_spec
def points_of_rows(spec: pg.DNASpec) -> Callable[[np.ndarray], np.ndarray]:
    """Function that encodes rows of a space, NaN where a feature is inactive, as points."""
    encode = encoder(encoding_spec(FlatSpace(spec)))
    # Values of inactive features are ignored.
    return lambda rows: encode(np.nan_to_num(rows, nan=_INACTIVE))[1]


def _repaired(chosen: np.ndarray, count: int, distinct: bool, is_sorted: bool) -> np.ndarray:
    """Repairs cells [B, slots] as `FlatSpace.decode` does, so that they are distinct or sorted."""
    if distinct:
        taken = np.zeros((len(chosen), count), bool)
        found = np.empty_like(chosen)
        for place in range(chosen.shape[1]):
            turns = (np.arange(count) - chosen[:, place, None]) % count
            found[:, place] = np.argmin(turns + count * taken, axis=1)
            taken[np.arange(len(chosen)), found[:, place]] = True
        chosen = found
    return np.sort(chosen, axis=1) if is_sorted else chosen


def _rounded(values: np.ndarray, low: int, high: int, is_log: bool) -> np.ndarray:
    """Rounds unit values to unit values of integers: see `encoding.scaling`."""
    ends = np.array([low - 0.5, high + 0.5])
    ends = np.log(ends) if is_log else ends
    at = ends[0] + values * (ends[1] - ends[0])
    whole = np.clip(np.round(np.exp(at) if is_log else at), low, high)
    return ((np.log(whole) if is_log else whole) - ends[0]) / (ends[1] - ends[0])


def _columns(
    encoding: EncodingSpec, rows: np.ndarray, chosen: np.ndarray, is_active: np.ndarray
) -> np.ndarray:
    points = np.where(is_active, rows, _INACTIVE)[:, encoding.columns]
    for i in np.flatnonzero(encoding.are_categorical):
        # The distance between two different candidates is 1.
        hot = np.eye(encoding.counts[i])[chosen[:, i]] / math.sqrt(2.0)
        points[:, encoding.columns == i] = np.where(is_active[:, i, None], hot, 0.0)
    return points
