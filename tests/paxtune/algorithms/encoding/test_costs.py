import random

import numpy as np
import pyglove as pg
import pytest

from paxtune.algorithms import TPE, Algorithm, GPBandit, Observation, Portfolio, SuggestionContext
from paxtune.algorithms.encoding.costs import log_cost_slopes

SPEC = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0), width=pg.floatv(1.0, 100.0, 'log')))


def _history(*, has_costs: bool) -> list[Observation]:
    """Trials whose width costs much, and does not matter for the score."""
    rng = random.Random(0)
    found = []
    for id_ in range(1, 16):
        decisions = {'x': rng.random(), 'width': 100.0 ** rng.random()}
        score = -abs(decisions['x'] - 0.5)
        cost = decisions['width'] if has_costs else None
        found.append(Observation(id_, decisions, 'completed', (score,), cost=cost))
    return found


def _mean_width(algorithm: Algorithm, *, has_costs: bool) -> float:
    history = _history(has_costs=has_costs)
    made = [
        algorithm.suggest(SuggestionContext(SPEC, seed, 17, lambda: history)) for seed in range(8)
    ]
    return float(np.mean([np.log10(each.decisions['width']) for each in made]))


@pytest.mark.parametrize('algorithm', [TPE(), GPBandit(), Portfolio()], ids=str)
def test_suggestions_are_cheaper_where_costs_are_known(algorithm: Algorithm) -> None:
    cheap, any_ = (_mean_width(algorithm, has_costs=known) for known in (True, False))
    assert cheap < any_ - 0.2


def test_few_costs_tell_nothing() -> None:
    trials = _history(has_costs=True)[:3] + _history(has_costs=False)[3:]
    points = np.random.default_rng(0).random((15, 2))
    assert not log_cost_slopes(trials, points).any()
