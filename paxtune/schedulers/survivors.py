"""Computes how many trials should survive a rung, from how well the rung orders their ends.

The model is Gaussian: a trial's rewards at the rungs and at its end, as normal scores, are a Markov
chain with known correlations. A trial is a hit if it ends among the best `HITS`. The shares
are chosen for the least compute for each hit. If the rungs carry no information, all trials train
to their ends.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

HITS = 1 / 64
"""The share of trials that end well enough."""

LIKELY = 0.9
"""The chance that `share_with_best` keeps the trial that ends best."""

# The highest correlation of a rung with the next one: a grid has no finer steps.
_MAX_CORRELATION = 0.98
_GRID = np.linspace(-4.0, 4.0, 81)
_ROUNDS = 30
_NORMAL = statistics.NormalDist()


def survivor_shares(
    correlations: Sequence[float], levels: Sequence[float], factor: float
) -> list[float]:
    """Computes the share of the trials that reach a rung which should go on from there.

    Args:
        correlations: of the scores at each rung with those at the end, from the lowest rung.
        levels: the rungs as shares of the compute of a whole trial.
        factor: at least 1 / factor of the trials goes on.

    Example:
        >>> [round(each, 2) for each in survivor_shares([0.9, 0.95], [0.1, 0.3], 3)]
        [0.33, 0.33]
        >>> survivor_shares([0.0, 0.0], [0.1, 0.3], 3)
        [1.0, 1.0]
    """
    rounded = tuple(round(min(max(each, 0.0), 1.0), 2) for each in correlations)
    return list(_shares(rounded, tuple(levels), factor))


def share_with_best(correlation: float, trials: int) -> float:
    """Computes the share of trials that most likely contains the best end.

    Args:
        correlation: of the scores at a rung with those at the end.
        trials: the number of trials there.

    Example:
        >>> [round(share_with_best(each, 64), 2) for each in (0.9, 0.6, 0.2, 0.0)]
        [0.05, 0.34, 0.78, 0.9]
    """
    own = min(max(correlation, 0.0), _MAX_CORRELATION)
    best = _NORMAL.inv_cdf(1.0 - 0.5 / max(trials, 1))
    least = own * best + _NORMAL.inv_cdf(1.0 - LIKELY) * math.sqrt(1.0 - own**2)
    return 1.0 - _NORMAL.cdf(least)


@functools.lru_cache(maxsize=256)
def _shares(
    correlations: tuple[float, ...], levels: tuple[float, ...], factor: float
) -> tuple[float, ...]:
    if not levels:
        return ()
    moves = [_move(one, other) for one, other in itertools.pairwise([*correlations, 1.0])]
    costs = np.diff([*levels, 1.0])
    hits = (_NORMAL.inv_cdf(1.0 - HITS) <= _GRID).astype(float)
    start = _weights(_GRID)
    # Bisection: the best shares have the price of compute at which a trial gains nothing.
    low, high = 0.0, 2.0 * HITS / levels[0]
    for _ in range(_ROUNDS):
        price = (low + high) / 2.0
        gains = _gains(moves, costs, hits, price)
        worth = float(start @ np.maximum(gains[0], 0.0)) - price * levels[0]
        low, high = (price, high) if worth > 0.0 else (low, price)
    found, here = [], start
    for gain, move in zip(_gains(moves, costs, hits, low), moves, strict=True):
        passing = _passing(gain)
        if here @ passing < 1.0 / factor:
            passing = _best(here, 1.0 / factor)
        going = here * passing
        found.append(min(1.0, float(going.sum())))
        here = (going / found[-1]) @ move
    return tuple(found)


def _gains(moves: Sequence[Array], costs: Array, hits: Array, price: float) -> list[Array]:
    """The gain of going on from each rung, by the score there."""
    found: list[Array] = []
    value = hits
    for move, cost in zip(reversed(moves), reversed(costs), strict=True):
        gain = move @ value - price * cost
        found.insert(0, gain)
        value = np.maximum(gain, 0.0)
    return found


def _passing(gain: Array) -> Array:
    """The share of each cell of the grid that gains; linear where the sign changes."""
    slope = np.maximum(np.gradient(gain), 1e-12)
    return np.clip(gain / slope + 0.5, 0.0, 1.0)


def _best(here: Array, share: float) -> Array:
    """The share of each cell of the grid that is among the best share of all."""
    above = np.append(np.cumsum(here[::-1])[::-1][1:], 0.0)
    return np.clip((share - above) / np.maximum(here, 1e-12), 0.0, 1.0)


def _move(correlation: float, later: float) -> Array:
    """The distribution of the next score, for each score here."""
    own = min(_MAX_CORRELATION, correlation / later if later > 0.0 else 0.0)
    spread = math.sqrt(1.0 - own**2)
    rows = _weights((_GRID[None, :] - own * _GRID[:, None]) / spread)
    found: Array = rows / rows.sum(axis=1, keepdims=True)
    return found


def _weights(scores: Array) -> Array:
    density = np.exp(-0.5 * scores**2)
    found: Array = density / density.sum(axis=-1, keepdims=True)
    return found
