import random

import pyglove as pg
import pytest

from paxtune.algorithms import TPE, Observation, Portfolio, SuggestionContext
from tests.conformance.algorithm_suite import check_algorithm

SPEC = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(3)}))


@pytest.mark.slow
def test_conforms():
    check_algorithm(Portfolio(num_initial=2))


def _observed(merit, count: int) -> list[Observation]:
    rng = random.Random(0)
    drawn = [{f'x{i}': rng.random() for i in range(3)} for _ in range(count)]
    return [Observation(i, d, 'completed', (merit(d),)) for i, d in enumerate(drawn, start=1)]


def _shares_of_tpe(history: list[Observation], count: int = 6) -> list[bool]:
    """Lists for each seed whether the suggestion is that of the Parzen estimator."""
    contexts = [
        SuggestionContext(SPEC, seed, len(history) + 1, lambda: history) for seed in range(count)
    ]
    return [Portfolio().suggest(each) == TPE().suggest(each) for each in contexts]


def test_a_smooth_objective_is_searched_by_the_gaussian_process():
    history = _observed(lambda d: -sum((x - 0.3) ** 2 for x in d.values()), 20)
    assert _shares_of_tpe(history) == [False] * 6


def test_noise_is_searched_by_the_parzen_estimator():
    noise = random.Random(1)
    assert _shares_of_tpe(_observed(lambda d: noise.random(), 20)) == [True] * 6


def test_both_are_drawn_where_the_process_predicts_a_little():
    noise = random.Random(2)
    history = _observed(lambda d: d['x0'] - d['x1'] + 0.2 * noise.gauss(0, 1), 20)
    assert {*_shares_of_tpe(history, 12)} == {False, True}
