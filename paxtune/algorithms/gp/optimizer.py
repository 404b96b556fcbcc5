"""Maximization of an acquisition function."""

from typing import TypeAlias

import numpy as np

from paxtune.algorithms.encoding.points import EncodingSpec
from paxtune.algorithms.gp.acquisition import Acquisition
from paxtune.algorithms.gp.model import Array

# Numbers of evaluations: 19,000 in all. A gradient step counts as three. Four times as many, as
# in Vizier's optimizer, find values 0.002 higher at most (benchmarks/results/suggest_latency.md).
_NUM_DRAWN = 4096
_GENERATIONS = 12
_NUM_CHILDREN = 1024
_NUM_ELITE = 256
_NUM_ASCENTS = 32
_NUM_STEPS = 30

Scored: TypeAlias = tuple[Array, Array]
"""Rows [B, features], each unit value in the middle of its cell, and their values [B]."""


def maximize(acquisition: Acquisition, known: Array, rng: np.random.Generator) -> Scored:
    """Maximizes an acquisition function.

    It draws rows, evolves the best ones for some generations, and refines the best of these by
    gradient ascent.

    Args:
        acquisition: of rows [B, features].
        known: rows to begin with, too [K, features].
        rng: draws rows and steps.

    Returns:
        256 rows, best first, and their values.
    """
    drawn = _draw_candidates(rng, acquisition.encoding, known)
    parts = [acquisition(part) for part in drawn.reshape(-1, _NUM_CHILDREN, drawn.shape[1])]
    elite = _top(*parts)
    for _ in range(_GENERATIONS):
        # Better rows have more children.
        parents = elite[0][(_NUM_ELITE * rng.random(_NUM_CHILDREN) ** 2).astype(int)]
        others = elite[0][rng.integers(_NUM_ELITE, size=_NUM_CHILDREN)]
        children = _perturb(rng, acquisition.encoding, parents, others)
        elite = _top(elite, acquisition(children))
    return _top(elite, _gradient_ascent(acquisition, elite[0][:_NUM_ASCENTS]))


def _draw_candidates(rng: np.random.Generator, encoding: EncodingSpec, known: Array) -> Array:
    """Draws half of the rows uniformly, half around the known rows."""
    half = _NUM_DRAWN // 2
    parents = known[np.arange(_NUM_DRAWN - half) % len(known)]
    around = _perturb(rng, encoding, parents, parents)
    return np.concatenate([rng.random((half, known.shape[1])), around])


def _perturb(rng: np.random.Generator, encoding: EncodingSpec, rows: Array, others: Array) -> Array:
    """Perturbs rows: takes some values from others, changes some by a small or large step."""
    shape, each = rows.shape, (len(rows), 1)
    rows = np.where(rng.random(shape) < 0.2 * rng.random(each), others, rows)
    # From one or two features to all of them; from a tiny step to half the range.
    is_changed = rng.random(shape) < np.exp2(rng.uniform(0, 6, each)) / shape[1]
    near = np.abs(rows + 10.0 ** rng.uniform(-3.5, -0.3, each) * rng.normal(size=shape))
    near = np.clip(np.where(near > 1, 2 - near, near), 0.0, 1.0)
    changed = np.where(np.array(encoding.are_categorical), rng.random(shape), near)
    return np.where(is_changed, changed, rows)


def _gradient_ascent(acquisition: Acquisition, rows: Array) -> Scored:
    """Runs Adam with step sizes that decay to 0."""
    first = second = np.zeros_like(rows)
    for i in range(_NUM_STEPS):
        ascent = np.nan_to_num(acquisition.gradient(rows))
        first, second = 0.8 * first + 0.2 * ascent, 0.95 * second + 0.05 * ascent**2
        scale = np.sqrt(second / (1 - 0.95 ** (i + 1))) + 1e-12
        move = first / (1 - 0.8 ** (i + 1)) / scale
        rows = np.clip(rows + 0.03 * (1 - i / _NUM_STEPS) ** 2 * move, 0.0, 1.0)
    return acquisition(rows)


def _top(*parts: Scored) -> Scored:
    rows, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    where = np.argsort(-values, kind='stable')[:_NUM_ELITE]
    return rows[where], values[where]
