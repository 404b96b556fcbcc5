"""Estimates where the winners of a study stand at its rungs, and how many trials should go on.

A winner is a trial that ends among the best of those that ended. Its place at a rung, as a quantile
of a normal distribution, has a normal distribution itself, of unknown mean and deviation. Places of
known winners show them. Cut winners are unknown, but for rescued ones: a cut trial is trained to
its end with a known chance. The likelihood divides by the chance that a winner at such a place is
known at all. So neither the cut nor the rescues bias it.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paxtune.schedulers.end_prediction import Array

MIN_ENDS = 4
"""Ends without which there is only the prior."""

WINNERS, MIN_WINNERS = 0.25, 2
"""The winners among N trials are the best WINNERS * sqrt(N), but at least MIN_WINNERS."""

NEAR, FAR = 1 / 24, 1 / 64
"""The chances that a cut trial is rescued: NEAR up to twice the share that goes on, FAR beyond."""

GROWS_FROM, MAX_GROWTH = 96, 4.0
"""Trial N has N / GROWS_FROM times these chances, but at least once and at most MAX_GROWTH times.

The longer a study lasts, the more compute is lost where its rungs lose the winners.
"""

LIKELY = 0.8
"""The chance that winners are among the trials that go on at last."""

# The prior of the mean: most rungs show winners early, and some mislead about them.
_TRUSTED, _DOUBTED, _DOUBT = (1.8, 0.75), (0.0, 1.2), 0.1
_CAUTION = 0.2
"""The standard deviations by which an estimate lies below the expected one."""

_SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_SWEEPS = 6
_PLACES = 64


class Survival(NamedTuple):
    """Estimates of one rung.

    Attributes:
        share: of the trials here that goes on.
        winners: the share of the winners here that goes on, by a careful estimate.
        last_share: the share that goes on at least, when no more trials begin.
        density: of winners at some places, by the density of all trials; from the best place to the
            worst. Empty where the share is the least one: then better places come first.
    """

    share: float
    winners: float
    last_share: float
    density: Sequence[float] = ()


def is_drawn(number: int, chance: float) -> bool:
    """True for a trial that is rescued with this chance. Larger chances add trials.

    Multiples of the golden ratio spread evenly, so about each 24th trial has a chance of 1 / 24.

    Example:
        >>> [number for number in range(1, 100) if is_drawn(number, 1 / 24)]
        [14, 35, 48, 69]
    """
    return (0.37 + number * 0.6180339887498949) % 1.0 < chance


def growth(numbers: np.ndarray) -> Array:
    """The factor of the chances of trials with these numbers.

    Example:
        >>> growth(np.array([1, 96, 144, 1000])).tolist()
        [1.0, 1.0, 1.5, 4.0]
    """
    return np.clip(numbers / GROWS_FROM, 1.0, MAX_GROWTH)


def rescue_chance(number: int, places: Sequence[float], shares: Sequence[float]) -> float:
    """The chance that a trial is trained to its end though rungs cut it; 0.0 if none does.

    Args:
        number: of the trial.
        places: of the trial at the rungs that it has reached: 0.1 has a tenth of the trials before
            it, or beside it.
        shares: that go on from these rungs.

    Example:
        >>> rescue_chance(1, [0.3], [1 / 3]), rescue_chance(1, [0.6], [1 / 3]) == NEAR
        (0.0, True)
    """
    pairs = zip(places, shares, strict=True)
    chance = max((NEAR if p <= 2 * share else FAR for p, share in pairs if p > share), default=0.0)
    return chance * float(growth(np.array(number)))


def winners(ends: Array, trials: int) -> np.ndarray:
    """The indices of the trials with the best ends, best first; none without `MIN_ENDS`.

    Args:
        ends: the final scores; NaN for none.
        trials: the number of trials in the study that began.

    Example:
        >>> winners(np.array([1.0, 5.0, math.nan, 3.0, 2.0]), trials=5).tolist()
        [1, 3]
    """
    ended = np.flatnonzero(np.isfinite(ends))
    count = max(MIN_WINNERS, math.ceil(WINNERS * math.sqrt(trials)))
    found = ended[np.argsort(-ends[ended], kind='stable')[:count]]
    return found[:0] if len(ended) < MIN_ENDS else found


def survivals(
    places: Array,
    numbers: np.ndarray,
    went_on: Sequence[float],
    levels: Sequence[float],
    factor: float,
) -> list[Survival]:
    """Estimates the survival of winners at each rung, and the shares for the least compute.

    Args:
        places: of the winners, [winners, rungs], from 0, the best, to 1; NaN where one was not.
        numbers: of the winners.
        went_on: the share of the trials at each rung that was trained beyond.
        levels: the rungs as shares of the compute of a whole trial.
        factor: at least 1 / factor of the trials goes on.

    Example:
        >>> levels = [0.1, 0.3]
        >>> none = survivals(np.empty((0, 2)), np.empty(0), [1 / 3, 1 / 3], levels, 3)
        >>> [round(each.share, 2) for each in none]
        [0.33, 0.33]
        >>> last = survivals(np.full((6, 2), 0.9), np.arange(6), [1 / 3, 1 / 3], levels, 3)
        >>> [each.share for each in last]
        [1.0, 1.0]
    """
    candidates = np.array([1.0 / factor, *(each for each in _SHARES if each > 1.0 / factor)])
    passing = _passing(candidates)
    posteriors = _posteriors(places, growth(numbers), went_on, factor)
    expected = [posterior @ passing for posterior in posteriors]
    careful = np.array(
        [
            np.maximum(
                mean - _CAUTION * np.sqrt(np.maximum(posterior @ passing**2 - mean**2, 0)), 0
            )
            for mean, posterior in zip(expected, posteriors, strict=True)
        ]
    ).reshape(len(posteriors), len(candidates))
    chosen = _cheapest(careful, candidates, levels)
    return [
        Survival(
            float(candidates[at]),
            float(careful[rung, at]),
            float(candidates[np.argmax(expected[rung] >= LIKELY)]),
            (posteriors[rung] @ _densities()).tolist() if at else (),
        )
        for rung, at in enumerate(chosen)
    ]


def _posteriors(
    places: Array, growths: Array, went_on: Sequence[float], factor: float
) -> list[Array]:
    """The probability of each distribution of `_MEANS` and `_SPREADS`, for each rung."""
    quantiles = _quantiles(places)
    # Rescued trials are beyond, too.
    rescued = FAR * (float(growths.mean()) if len(growths) else 1.0)
    found: list[Array] = []
    later = 1.0  # The chance that a winner which goes on from here passes the later rungs, too.
    for rung in reversed(range(places.shape[1])):
        share = min(1.0, max(1.0 / factor, went_on[rung] - rescued))
        kept, near = _passing(np.array([share, min(1.0, 2 * share)])).T
        by_rescue = NEAR * (near - later * kept) + FAR * (1 - near)
        there = np.isfinite(quantiles[:, rung])
        known = later * kept + growths[there, None] * by_rescue
        here = quantiles[there, rung]
        logs = _PRIOR - np.log(known).sum(axis=0) - len(here) * np.log(_SPREADS)
        logs -= 0.5 * np.sum(((here[:, None] - _MEANS) / _SPREADS) ** 2, axis=0)
        posterior = np.exp(logs - logs.max())
        found.append(posterior / posterior.sum())
        later *= float(found[-1] @ kept)
    return found[::-1]


def _cheapest(survival: Array, candidates: Array, levels: Sequence[float]) -> list[int]:
    """The candidates with the least compute for each winner that survives all rungs."""
    costs, best = np.diff([*levels, 1.0]), (0.0, [0] * len(survival))
    for start in (0, len(candidates) - 1):
        chosen = [start] * len(survival)
        worth = 0.0
        for _ in range(_SWEEPS):
            before = worth
            for rung in range(len(chosen)):
                shares = np.tile(candidates[chosen], (len(candidates), 1))
                shares[:, rung] = candidates
                others = math.prod(
                    float(survival[i, at]) for i, at in enumerate(chosen) if i != rung
                )
                worths = others * survival[rung] / (levels[0] + np.cumprod(shares, 1) @ costs)
                chosen[rung] = int(np.argmax(worths))
                worth = float(worths[chosen[rung]])
            if worth <= before:
                break
        best = max(best, (worth, chosen), key=lambda each: each[0])
    return best[1]


def _quantiles(places: Array) -> Array:
    # Imported here: it takes 0.15 s.
    import scipy.special

    found: Array = scipy.special.ndtri(1.0 - places)
    return found


def _passing(shares: Array) -> Array:
    """The chance that a winner is among the best share, [distributions, shares]."""
    import scipy.special

    with np.errstate(divide='ignore'):
        limits = _quantiles(shares)
    found: Array = scipy.special.ndtr((_MEANS[:, None] - limits) / _SPREADS[:, None])
    return found


@functools.cache
def _densities() -> Array:
    """The density of winners by that of all trials, [distributions, places]."""
    places = _quantiles((np.arange(_PLACES) + 0.5) / _PLACES)
    distances = (places - _MEANS[:, None]) / _SPREADS[:, None]
    found: Array = np.exp(0.5 * (places**2 - distances**2)) / _SPREADS[:, None]
    return found


def _normal(mean: float, deviation: float) -> Array:
    density = np.exp(-0.5 * ((_MEANS - mean) / deviation) ** 2)
    found: Array = density / density.sum()
    return found


_MEANS, _SPREADS = (
    each.ravel() for each in np.meshgrid(np.linspace(-2.0, 3.0, 21), [0.3, 0.5, 0.75, 1.0, 1.3])
)
_PRIOR = np.log((1.0 - _DOUBT) * _normal(*_TRUSTED) + _DOUBT * _normal(*_DOUBTED))
