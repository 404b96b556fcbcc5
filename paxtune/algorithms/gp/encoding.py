"""The box of a search space in JAX: rows of shares as points between which there is a distance."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pyglove as pg

from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.search_space import decisions

_MIDDLE = 0.5  # Where a number stands that is not open.


@dataclasses.dataclass(frozen=True)
class Box:
    """What compiled code has to know of a space. Two spaces that look alike to it are equal.

    Attributes:
        counts: how many candidates each feature has; 0 for a number.
        are_categories: of each feature, whether its cells have no order.
        owners: of each feature, the index of the one that opens it; -1 where it is always open.
        opened_by: of each feature, the cell of its owner that opens it.
        groups: features, by their indices, whose cells must differ, be in order, or both.
        wholes: features of whole numbers: index, least, most, and whether they are on a logarithmic
            scale.
    """

    counts: tuple[int, ...]
    are_categories: tuple[bool, ...]
    owners: tuple[int, ...]
    opened_by: tuple[int, ...]
    groups: tuple[tuple[tuple[int, ...], bool, bool], ...]
    wholes: tuple[tuple[int, int, int, bool], ...]

    @property
    def columns(self) -> np.ndarray:
        """The features of the columns of a point: [num_columns], int32.

        A number or an ordinal choice has one column, a category one for each candidate.
        """
        widths = [
            count if is_category else 1
            for count, is_category in zip(self.counts, self.are_categories, strict=True)
        ]
        return np.repeat(np.arange(len(widths), dtype=np.int32), widths)

    @property
    def are_moved_by_slopes(self) -> np.ndarray:
        """Of each feature, whether small changes of its share change the point: [features]."""
        return np.array([count == 0 for count in self.counts])


def box_of(space: FlatSpace) -> Box:
    """The box of a flat space."""
    index = {feature.id: i for i, feature in enumerate(space.features)}
    counts = [len(feature.order) for feature in space.features]
    groups, wholes = [], []
    for point in decisions.points(space.spec):
        if isinstance(point, pg.geno.Float):
            if decisions.is_integer(point):
                ends = int(point.min_value), int(point.max_value)
                wholes.append((index[point.id.path], *ends, point.scale in ('log', 'rlog')))
        elif point.num_choices > 1 and (point.distinct or point.sorted):
            members = tuple(index[id_] for id_ in decisions.ids(point))
            groups.append((members, bool(point.distinct), bool(point.sorted)))
    return Box(
        tuple(counts),
        tuple(feature.kind == 'category' for feature in space.features),
        tuple(feature.owner for feature in space.features),
        tuple(feature.opened_by for feature in space.features),
        tuple(groups),
        tuple(wholes),
    )


@functools.lru_cache(maxsize=32)
def embedding(box: Box) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """What makes points of rows.

    Returns:
        A function of rows [B, features]. It returns the rows with each share in the middle of its
        cell, as the decisions that are made of them have it, and the points [B, columns]. What is
        not open is the same in all points.
    """
    counts = np.array(box.counts)
    cells = np.maximum(counts, 1)
    depth = _depths(box)

    def embed(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        chosen = jnp.clip(jnp.floor(rows * cells), 0, cells - 1).astype(jnp.int32)
        for members, distinct, is_sorted in box.groups:
            chosen = chosen.at[:, members].set(
                _repaired(chosen[:, members], int(counts[members[0]]), distinct, is_sorted)
            )
        rows = jnp.where(counts > 0, (chosen + 0.5) / cells, rows)
        for i, low, high, is_log in box.wholes:
            rows = rows.at[:, i].set(_rounded(rows[:, i], low, high, is_log))
        is_open = jnp.ones(rows.shape, bool)
        for level in range(1, max(depth, default=0) + 1):
            of_level = np.flatnonzero(np.array(depth) == level)
            owners = np.array(box.owners)[of_level]
            opens = chosen[:, owners] == np.array(box.opened_by)[of_level]
            is_open = is_open.at[:, of_level].set(is_open[:, owners] & opens)
        return rows, _columns(box, rows, chosen, is_open)

    return embed


@functools.lru_cache(maxsize=32)
def points(box: Box) -> Callable[[np.ndarray], jax.Array]:
    """The compiled function from rows [B, features] to points [B, columns]."""
    embed = embedding(box)
    return jax.jit(lambda rows: embed(rows)[1])


def _depths(box: Box) -> list[int]:
    depths: list[int] = []
    for owner in box.owners:
        depths.append(0 if owner < 0 else depths[owner] + 1)
    return depths


def _repaired(chosen: jax.Array, count: int, distinct: bool, is_sorted: bool) -> jax.Array:
    """Cells [B, places] that differ, where they must, as `FlatSpace.decode` makes them differ."""
    if distinct:
        taken = jnp.zeros((chosen.shape[0], count), bool)
        found = []
        for place in range(chosen.shape[1]):
            turns = (jnp.arange(count) - chosen[:, place, None]) % count
            cell = jnp.argmin(turns + count * taken, axis=1)
            taken = taken | (jnp.arange(count) == cell[:, None])
            found.append(cell)
        chosen = jnp.stack(found, axis=1).astype(chosen.dtype)
    return jnp.sort(chosen, axis=1) if is_sorted else chosen


def _rounded(shares: jax.Array, low: int, high: int, is_log: bool) -> jax.Array:
    """Shares of a range where its whole numbers stand: see `encoding.scaling`."""
    ends = np.array([low - 0.5, high + 0.5])
    ends = np.log(ends) if is_log else ends
    at = ends[0] + shares * (ends[1] - ends[0])
    whole = jnp.clip(jnp.round(jnp.exp(at) if is_log else at), low, high)
    rounded = ((jnp.log(whole) if is_log else whole) - ends[0]) / (ends[1] - ends[0])
    # Slopes pass as if nothing was rounded: else nothing would climb them.
    return shares + jax.lax.stop_gradient(rounded - shares)


def _columns(box: Box, rows: jax.Array, chosen: jax.Array, is_open: jax.Array) -> jax.Array:
    parts = []
    for i, (count, is_category) in enumerate(zip(box.counts, box.are_categories, strict=True)):
        if is_category:
            # Two different candidates are 1 apart.
            hot = jax.nn.one_hot(chosen[:, i], count, dtype=rows.dtype) / math.sqrt(2.0)
            parts.append(jnp.where(is_open[:, i, None], hot, 0.0))
        else:
            parts.append(jnp.where(is_open[:, i, None], rows[:, i, None], _MIDDLE))
    return jnp.concatenate(parts, axis=1)
