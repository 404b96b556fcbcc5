"""One suggestion by the ratio of two densities."""

import math
from collections.abc import Sequence

import numpy as np

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.algorithms.encoding import density
from paxtune.algorithms.encoding.costs import log_cost_slopes
from paxtune.algorithms.encoding.earlier import is_own
from paxtune.algorithms.encoding.history import encoded_rows
from paxtune.algorithms.encoding.known_values import KnownRow
from paxtune.algorithms.encoding.novelty import RESOLUTION, EarlierTrials, first_new
from paxtune.algorithms.encoding.points import encoder, encoding_spec
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp.earlier_studies import compared
from paxtune.algorithms.ranking import best_trials
from paxtune.search_space.decisions import Decisions

_GOOD_SHARE, _MAX_GOOD = 0.1, 25  # As in Optuna.
_MAX_ROUNDS = 20

MAX_KERNELS = 2000
"""Trials of a density at most. Of more, as many are taken evenly, and all that run."""


def suggest_decisions(
    context: SuggestionContext, space: FlatSpace, num_candidates: int, prior_strength: float
) -> Decisions | None:
    """Returns eligible decisions of a high ratio of densities, or None if none were found.

    The context has a completed trial. `prior_strength` is the weight of known values in trials.
    """
    rng = np.random.default_rng(context.rng().getrandbits(64))
    encoding = encoding_spec(space)
    tried = encoded_rows(context, space)
    weights = _weights(context, space)
    known, strength = KnownRow(space, context.prior), 0.0
    if context.prior:
        strength = prior_strength * known.support(context.observations, tried)

    def fitted(places: Sequence[int], strength: float = 0.0) -> density.Density:
        at = np.array(places, int)
        extra = known.values, known.deviations, strength
        return density.fit(encoding, tried[at], *extra, weights[at])

    good, bad, infeasible = _split(context, weights)
    some_bad = _thinned(bad, context.observations)
    of_good, of_bad = fitted(good, strength), fitted(some_bad)
    of_feasible = fitted([*good, *some_bad])
    of_infeasible = fitted(_thinned(infeasible, context.observations))
    encode = encoder(encoding)
    _, points_tried, _ = encode(np.nan_to_num(tried, nan=0.5))
    slopes = log_cost_slopes(context.observations, points_tried)
    earlier = EarlierTrials(space, context.observations, tried)
    num_good, num_bad, num_infeasible = (weights[each].sum() for each in (good, bad, infeasible))
    # All draws of a round may be known or infeasible.
    for _ in range(_MAX_ROUNDS):
        rows, points, is_active = encode(of_good.sample(num_candidates, rng))
        rows = np.where(is_active, rows, math.nan)
        value = _log_share(of_good, of_bad, num_good, num_bad, rows)
        if infeasible:
            counts = num_good + num_bad, num_infeasible
            value += _log_share(of_feasible, of_infeasible, *counts, rows)
        value -= points @ slopes
        best_first = np.nan_to_num(rows[np.argsort(-value, kind='stable')], nan=0.5)
        found = first_new(context, earlier, map(space.decode, best_first), RESOLUTION, RESOLUTION)
        if found is not None:
            return found
    return None


def _weights(context: SuggestionContext, space: FlatSpace) -> np.ndarray:
    """Weights of trials: 1, or the explained share of the variance for an earlier study's."""
    correlations = {each.source: each.correlation for each in compared(context, space)}
    return np.array(
        [1.0 if is_own(t) else correlations[t.source] ** 2 for t in context.observations]
    )


def _split(context: SuggestionContext, weights: np.ndarray) -> tuple[list[int], ...]:
    """Splits trials into the best tenth of the completed ones, the rest, and infeasible ones.

    Each study has its own best tenth. Trials without a weight are left out. Several rewards rank by
    fronts, as in Ozaki et al. 2022 (JAIR 73), and by crowding.

    Returns:
        The places of each; the best first of the best.
    """
    observations = context.observations
    by_study: dict[str | None, list[int]] = {}
    states = [trial.state for trial in observations]
    for place, trial in enumerate(observations):
        if trial.state == 'completed' and weights[place]:
            by_study.setdefault(None if is_own(trial) else trial.source, []).append(place)
    good = list[int]()
    for completed in by_study.values():
        count = min(math.ceil(_GOOD_SHARE * len(completed)), _MAX_GOOD)
        places = {observations[place].id: place for place in completed}
        best = best_trials([observations[place] for place in completed], count, context.memo)
        good += [places[trial.id] for trial in best]
    chosen = {*good, *np.flatnonzero(weights == 0)}
    bad = [i for i, state in enumerate(states) if state != 'infeasible' and i not in chosen]
    return good, bad, [place for place, state in enumerate(states) if state == 'infeasible']


def _thinned(places: Sequence[int], observations: Sequence[Observation]) -> Sequence[int]:
    """Thins places out evenly to those that a density takes; running trials stay."""
    if len(places) <= MAX_KERNELS:
        return places
    kept = {places[i * len(places) // MAX_KERNELS] for i in range(MAX_KERNELS)}
    return [each for each in places if each in kept or observations[each].state == 'pending']


def _log_share(
    of_good: density.Density,
    of_bad: density.Density,
    num_good: float,
    num_bad: float,
    rows: np.ndarray,
) -> np.ndarray:
    """Logarithm of the share of good trials at rows [B, features], by the share of all trials.

    The relative density ratio of c-TPE: products of several are meaningful.
    """
    share = num_good / (num_good + num_bad)
    ratios = of_bad.log_density(rows) - of_good.log_density(rows)
    return -np.logaddexp(np.log(share), np.log1p(-share) + ratios)
