import random

import pyglove as pg
import pytest

from paxtune.algorithms import Observation, Portfolio, SuggestionContext
from paxtune.algorithms.gp import search as gp_search
from paxtune.algorithms.tpe import search as tpe_search
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import check_algorithm

SPEC = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(3)}))


@pytest.mark.slow
def test_conforms():
    check_algorithm(Portfolio(num_initial=2))


def _observed(merit, count: int) -> list[Observation]:
    rng = random.Random(0)
    drawn = [{f'x{i}': rng.random() for i in range(3)} for _ in range(count)]
    return [Observation(i, d, 'completed', (merit(d),)) for i, d in enumerate(drawn, start=1)]


@pytest.fixture
def members(monkeypatch) -> list[str]:
    """The members that were asked, in their order."""
    asked: list[str] = []

    def spied(name: str, module) -> None:
        real = module.suggest_decisions

        def suggest_decisions(*args) -> Decisions | None:
            asked.append(name)
            return real(*args)

        monkeypatch.setattr(module, 'suggest_decisions', suggest_decisions)

    spied('gp', gp_search)
    spied('tpe', tpe_search)
    return asked


def _asked(history: list[Observation], count: int = 6) -> None:
    for seed in range(count):
        Portfolio().suggest(SuggestionContext(SPEC, seed, len(history) + 1, lambda: history))


def test_a_smooth_objective_is_searched_by_the_gaussian_process(members):
    _asked(_observed(lambda d: -sum((x - 0.3) ** 2 for x in d.values()), 20))
    assert members == ['gp'] * 6


def test_noise_is_searched_by_the_parzen_estimator(members):
    noise = random.Random(1)
    _asked(_observed(lambda d: noise.random(), 20))
    assert members == ['tpe'] * 6


def test_both_are_drawn_where_the_process_predicts_a_little(members):
    noise = random.Random(2)
    _asked(_observed(lambda d: d['x0'] - d['x1'] + 0.2 * noise.gauss(0, 1), 20), 12)
    assert {'gp', 'tpe'} == set(members)
