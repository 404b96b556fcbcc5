"""Estimates rank correlations from few trials, which were selected."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paxtune.schedulers.end_prediction import Array

MIN_TRIALS = 3
"""Trials without which there is only the prior."""

_IN_ORDER, _REVERSED = 4.0, 1.0
"""The prior at the start, as numbers of pairs: most rungs that people choose order rather well."""

_CAUTION = 0.25
"""The standard deviations by which the estimate lies below the mean."""


class Link(NamedTuple):
    """A rung and a later one, or the end.

    Attributes:
        correlation: of the rewards at both, as normal scores.
        evidence: the number of trials that say as much, had they not been selected.
    """

    correlation: float
    evidence: float


def link(rewards: Array, later: Array) -> Link:
    """Estimates the correlation of a rung with a later one, or with the end.

    Trials that went on are the better ones at the rung. Their own correlation is too low for all
    trials. The slope of the later reward, by the rank among all trials at the rung, does not
    depend on which trials went on. It gives the correlation (Thorndike 1949, case 2).

    Args:
        rewards: of all trials at the rung; finite.
        later: the rewards of the same trials at the later one; NaN where there is none.

    Example:
        >>> rung = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
        >>> tuple(round(x, 2) for x in link(rung, 2 * rung))
        (1.0, 5.0)
        >>> tuple(round(x, 2) for x in link(rung, np.where(rung < 4, 2 * rung, math.nan)))
        (0.99, 1.08)
    """
    went_on = np.isfinite(later)
    if (count := int(went_on.sum())) < MIN_TRIALS:
        return Link(0.0, 0.0)
    places = _normal_scores(rewards)
    spread, selected = float(places.var()), places[went_on]
    if spread < 1e-9:  # A rung where all are equal orders nothing.
        return Link(0.0, count)
    evidence = count * min(1.0, float(selected.var()) / spread)
    return Link(_correlation(selected, _normal_scores(later[went_on]), spread), evidence)


def expected_correlation(links: Sequence[Link], progress: float) -> float:
    """Estimates the correlation of rewards at a rung with those at the end, with a prior.

    Rewards at the rungs and at the end are taken for a Markov chain, as in
    `paxtune.schedulers.survivors`: the correlation is the product over the links. One link
    from the rung to the end needs no chain. But it is too high where the trials that ended were
    selected at later rungs, too.

    The share of pairs of trials that come in the same order on both sides has a Beta distribution,
    and follows from the correlation. The trials count as many independent pairs as have the same
    variance if there is no order.

    Args:
        links: from the rung to the end, of one rung to the next.
        progress: the rung as a share of a whole trial. By the prior, later rungs order better.

    Example:
        >>> round(expected_correlation([Link(0.0, 0.0)], 0.1), 2)
        0.8
        >>> round(expected_correlation([Link(0.95, 20.0), Link(0.95, 10.0)], 0.1), 2)
        0.87
        >>> round(expected_correlation([Link(0.0, 20.0), Link(0.95, 10.0)], 0.1), 2)
        0.16
    """
    count = min(each.evidence for each in links)
    same = 0.5 + math.asin(math.prod(each.correlation for each in links)) / math.pi
    # The variance of Kendall's correlation is (4n + 10) / (9n(n - 1)).
    weight = 4.5 * count * (count - 1.0) / (2.0 * count + 5.0) if count > 1.0 else 0.0
    total = _IN_ORDER + _REVERSED * (1.0 - progress) ** 2 + weight
    share = (_IN_ORDER + weight * same) / total
    share -= _CAUTION * math.sqrt(share * (1.0 - share) / (total + 1.0))
    return math.sin(math.pi * (share - 0.5))


def _normal_scores(values: Array) -> Array:
    """The places of values, as quantiles of a normal distribution; equal ones share a place."""
    # Imported here: it takes 0.15 s.
    import scipy.special

    ordered = np.sort(values)
    below, until = np.searchsorted(ordered, values), np.searchsorted(ordered, values, 'right')
    quantiles: Array = scipy.special.ndtri((below + until) / 2.0 / len(values))
    return quantiles


def _correlation(places: Array, later: Array, spread: float) -> float:
    """The correlation in a population whose places have the variance `spread`."""
    x, y = places - places.mean(), later - later.mean()
    if not (variance := float(np.mean(x**2))) > 1e-9:
        return 0.0
    slope = float(np.mean(x * y)) / variance
    explained = slope**2 * spread
    residual = float(np.sum((y - slope * x) ** 2)) / (len(x) - 2)
    return math.copysign(math.sqrt(explained / (explained + residual)), slope) if slope else 0.0
