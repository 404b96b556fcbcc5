"""Families of synthetic learning curves that cross, with a known rank correlation.

A trial's score at a share t of its budget is a decaying mean of all trials plus its own normal
score u(t). The correlation of u at a quarter of the budget with u at the end is known, and there
are two kinds of curves:

- `turning`: u(t) turns smoothly, at a constant speed in log(t), from an early score to a late one.
  From its course one may guess its end.
- `wandering`: u(t) is a stationary random walk in log(t) (Ornstein-Uhlenbeck). Its course has
  no more information than its last value.

`late` makes wandering curves whose winners begin late: until some share of the budget they stand at
other places, and then rise to their own curves. All other trials keep their order, so a rank
correlation of all hardly shows the winners.
"""

import dataclasses
import math

import numpy as np

from paxtune.objectives.measurement import Measurement
from paxtune.simulate.table import CurveTable, Row

KINDS = ('turning', 'wandering')
CORRELATIONS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
QUARTER = 0.25
_NOISE = 0.01
_WARMUP = 1.5  # The loss of a trial's score by its warm-up, in standard deviations.


@dataclasses.dataclass(frozen=True)
class Late:
    """Winners that begin late.

    Attributes:
        best, worst: the winners stand between these places at first: 0.0 is the best of all.
        until: the share of the budget until which they stand there. They arrive at their own
            curves at twice of it.
        correlation: as for `family`, without the winners.
        warmups: shares of the budget. Each trial has one of these as a decision, and stands lower
            until then; winners have the last one. The places and `until` do not count then.
        winners: the share of the trials that are winners.
    """

    best: float
    worst: float
    until: float
    correlation: float = 0.85
    warmups: tuple[float, ...] = ()
    winners: float = 0.05


LATE = {
    'second quarter': Late(0.25, 0.5, until=0.2),
    'second quarter, first rung': Late(0.25, 0.5, until=0.06),
    'second quarter, long': Late(0.25, 0.5, until=0.45),
    'second quarter, a tenth': Late(0.25, 0.5, until=0.2, winners=0.1),
    'third quarter': Late(0.4, 0.7, until=0.2),
    'bottom': Late(0.75, 1.0, until=0.2),
    'warm-ups': Late(0.25, 0.5, until=0.2, warmups=(0.02, 0.1, 0.3)),
}
"""Families whose winners begin late, by name."""


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
    own = _SCORES[kind](rng, count, np.log(shares), _pearson(correlation))
    return _table(rng, own, shares, None, f'{kind} {correlation}')


def late(name: str, seed: int, count: int = 1000, steps: int = 51) -> CurveTable:
    """Makes a table of curves whose winners begin late.

    Args:
        name: of `LATE`.
        seed: of the generator.
        count: the number of trials.
        steps: the number of evaluations of each.

    Example:
        >>> table = late('second quarter', seed=0, count=40)
        >>> first = [row.measurements[1].rewards[0] for row in table.rows]
        >>> best = min(range(40), key=lambda i: table.rows[i].measurements[-1].rewards[0])
        >>> 8 <= sorted(first).index(first[best]) <= 22
        True
    """
    kind = LATE[name]
    rng = np.random.default_rng([seed, *name.encode()])
    shares = np.arange(1, steps + 1) / steps
    own = _wandering(rng, count, np.log(shares), _pearson(kind.correlation))
    best = own[:, -1] >= np.quantile(own[:, -1], 1.0 - kind.winners)
    lengths = rng.random(count)
    if kind.warmups:
        drawn = rng.integers(len(kind.warmups), size=count)
        lengths = np.array(kind.warmups)[np.where(best, len(kind.warmups) - 1, drawn)]
        own -= _WARMUP * _held(lengths[:, None], shares)
    else:
        # Each winner has a place of its own, and stays there.
        places = rng.uniform(kind.best, kind.worst, best.sum())
        there = np.quantile(own, 1.0 - places, axis=0)
        own[best] += _held(kind.until, shares) * (there - own[best])
    return _table(rng, own, shares, lengths, name)


def _table(
    rng: np.random.Generator,
    own: np.ndarray,
    shares: np.ndarray,
    decision: np.ndarray | None,
    name: str,
) -> CurveTable:
    losses = 2.0 + shares**-0.3 - 0.2 * own + _NOISE * rng.standard_normal(own.shape)
    # From 1: the space of a column that begins near 0 is logarithmic, and few rows would be drawn.
    decisions = 1.0 + rng.random((len(own), 2))
    if decision is not None:
        decisions[:, 0] = 1.0 + decision
    rows = [_row(*pair) for pair in zip(decisions.tolist(), losses.tolist(), strict=True)]
    return CurveTable(rows, 'minimize', 'loss', name)


def _pearson(spearman: float) -> float:
    return 2.0 * math.sin(math.pi * spearman / 6.0)


def _held(until: float | np.ndarray, shares: np.ndarray) -> np.ndarray:
    """1 until a share of the budget, and 0 from twice of it on."""
    return np.clip(2.0 - shares / until, 0.0, 1.0)


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
