"""One suggestion by the ratio of two densities."""

import math
from collections.abc import Sequence

import numpy as np

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.algorithms.encoding.costs import log_cost_slopes
from paxtune.algorithms.encoding.novelty import RESOLUTION, EarlierTrials, first_new
from paxtune.algorithms.encoding.points import encoder, encoding_spec
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.tpe import density
from paxtune.search_space.decisions import Decisions

_GOOD_SHARE, _MAX_GOOD = 0.1, 25  # As in Optuna.
_MAX_ROUNDS = 20


def suggest_decisions(
    context: SuggestionContext, space: FlatSpace, num_candidates: int, prior_strength: float
) -> Decisions | None:
    """Returns eligible decisions of a high ratio of densities, or None if none were found.

    The context has a completed trial. `prior_strength` is the weight of the user prior in trials.
    """
    rng = np.random.default_rng(context.rng().getrandbits(64))
    encoding = encoding_spec(space)
    prior = space.encode(context.prior or {})
    strength = prior_strength if context.prior else 0.0

    def fitted(trials: Sequence[Observation], strength: float = 0.0) -> density.Density:
        return density.fit(encoding, _rows(trials, space), prior, strength)

    good, bad, infeasible = _split(context.observations)
    of_good, of_bad = fitted(good, strength), fitted(bad)
    of_feasible, of_infeasible = fitted([*good, *bad]), fitted(infeasible)
    encode = encoder(encoding)
    _, known, _ = encode(np.nan_to_num(_rows(context.observations, space), nan=0.5))
    slopes = log_cost_slopes(context.observations, known)
    earlier = EarlierTrials(space, context.observations)
    # All draws of a round may be known or infeasible.
    for _ in range(_MAX_ROUNDS):
        rows, points, is_active = encode(of_good.sample(num_candidates, rng))
        rows = np.where(is_active, rows, math.nan)
        value = _log_share(of_good, of_bad, len(good), len(bad), rows)
        if infeasible:
            counts = len(good) + len(bad), len(infeasible)
            value += _log_share(of_feasible, of_infeasible, *counts, rows)
        value -= points @ slopes
        best_first = np.nan_to_num(rows[np.argsort(-value, kind='stable')], nan=0.5)
        found = first_new(context, earlier, map(space.decode, best_first), RESOLUTION, RESOLUTION)
        if found is not None:
            return found
    return None


def _split(observations: Sequence[Observation]) -> tuple[list[Observation], ...]:
    """Splits trials into the best tenth of the completed ones, infeasible ones, and the rest."""
    completed = [trial for trial in observations if trial.state == 'completed']
    ranked = sorted(completed, key=lambda trial: trial.scores, reverse=True)
    good = ranked[: min(math.ceil(_GOOD_SHARE * len(ranked)), _MAX_GOOD)]
    chosen = {trial.id for trial in good}
    bad = [t for t in observations if t.id not in chosen and t.state != 'infeasible']
    return good, bad, [trial for trial in observations if trial.state == 'infeasible']


def _log_share(
    of_good: density.Density, of_bad: density.Density, num_good: int, num_bad: int, rows: np.ndarray
) -> np.ndarray:
    """Logarithm of the share of good trials at rows [B, features], by the share of all trials.

    The relative density ratio of c-TPE: products of several are meaningful.
    """
    share = num_good / (num_good + num_bad)
    ratios = of_bad.log_density(rows) - of_good.log_density(rows)
    return -np.logaddexp(np.log(share), np.log1p(-share) + ratios)


def _rows(trials: Sequence[Observation], space: FlatSpace) -> np.ndarray:
    rows = [space.encode(trial.decisions) for trial in trials]
    return np.array(rows).reshape(len(rows), len(space))
