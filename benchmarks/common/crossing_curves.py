"""Families of synthetic learning curves that cross, with a known rank correlation.

A trial's score at a share t of its budget is a decaying mean of all trials plus its own normal
score u(t). The correlation of u at a quarter of the budget with u at the end is known, and there
are two kinds of curves:

- `turning`: u(t) turns smoothly, at a constant speed in log(t), from an early score to a late one.
  From its course one may guess its end.
- `wandering`: u(t) is a stationary random walk in log(t) (Ornstein-Uhlenbeck). Its course has
  no more information than its last value.
"""

import math

import numpy as np

from paxtune.objectives.measurement import Measurement
from paxtune.simulate.table import CurveTable, Row

KINDS = ('turning', 'wandering')
CORRELATIONS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
QUARTER = 0.25
_NOISE = 0.01


def family(
    kind: str, correlation: float, seed: int, count: int = 1000, steps: int = 51
) -> CurveTable:
    """Makes a table of curves.

    Args:
        kind: of `KINDS`.
        correlation: the expected rank correlation (Spearman's) of losses at a quarter of the
            steps with those at the end.
        seed: of the generator.
        count: the number of trials.
        steps: the number of evaluations of each.

    Example:
        >>> table = family('turning', 0.5, seed=0, count=10)
        >>> len(table.rows), table.goal
        (10, 'minimize')
    """
    rng = np.random.default_rng([seed, KINDS.index(kind), round(100 * correlation)])
    shares = np.arange(1, steps + 1) / steps
    pearson = 2.0 * math.sin(math.pi * correlation / 6.0)
    own = _SCORES[kind](rng, count, np.log(shares), pearson)
    losses = 2.0 + shares**-0.3 - 0.2 * own + _NOISE * rng.standard_normal(own.shape)
    # From 1: the space of a column that begins near 0 is logarithmic, and few rows would be drawn.
    decisions = 1.0 + rng.random((count, 2))
    return CurveTable(
        [_row(*pair) for pair in zip(decisions.tolist(), losses.tolist(), strict=True)],
        'minimize',
        'loss',
        f'{kind} {correlation}',
    )


def _turning(rng: np.random.Generator, count: int, times: np.ndarray, pearson: float) -> np.ndarray:
    early, late = rng.standard_normal((2, count, 1))
    angles = math.acos(pearson) * times / math.log(QUARTER)
    # Beyond a right angle, the best ones early would be the worst ones late.
    angles = np.minimum(angles, math.pi / 2)
    return late * np.cos(angles) + early * np.sin(angles)


def _wandering(
    rng: np.random.Generator, count: int, times: np.ndarray, pearson: float
) -> np.ndarray:
    rate = math.log(pearson) / math.log(QUARTER)
    kept = np.exp(-rate * np.diff(times))
    scores = [rng.standard_normal(count)]
    for share in kept:
        noise = rng.standard_normal(count)
        scores.append(share * scores[-1] + math.sqrt(1.0 - share**2) * noise)
    return np.stack(scores, axis=1)


_SCORES = {'turning': _turning, 'wandering': _wandering}


def _row(decisions: list[float], losses: list[float]) -> Row:
    measurements = [Measurement(i, {'loss': each}, (each,)) for i, each in enumerate(losses, 1)]
    used = [float(each.step) for each in measurements]
    return Row(dict(zip('xy', decisions, strict=True)), measurements, {'steps': used}, losses[-1])
