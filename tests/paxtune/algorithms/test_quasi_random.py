import time
from collections import Counter

import numpy as np
import pyglove as pg
import pytest
from scipy.stats import qmc

from paxtune.algorithms import Algorithm, Observation, QuasiRandom, RandomSearch, SuggestionContext
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import ask, check_algorithm, conditional
from trainer.symbolic.ranges import intv


def test_conforms():
    check_algorithm(QuasiRandom())


def _first(algorithm: Algorithm, spec: pg.DNASpec, count: int, seed: int = 0) -> list[Decisions]:
    contexts = [SuggestionContext(spec, seed, number + 1, list) for number in range(count)]
    return [algorithm.suggest(context).decisions for context in contexts]


@pytest.mark.parametrize('seed', range(4))
def test_points_have_lower_discrepancy_than_random_ones(seed):
    numbers = {f'x{i}': pg.floatv(1e-6, 1.0, 'log') for i in range(3)}
    spec = pg.dna_spec(pg.Dict(numbers, width=pg.floatv(1.0, 9.0, 'rlog')))
    space = FlatSpace(spec)
    found = [
        qmc.discrepancy(
            np.array([space.encode(each) for each in _first(algorithm, spec, 50, seed)])
        )
        for algorithm in (QuasiRandom(), RandomSearch())
    ]
    assert found[0] < 0.5 * found[1]


def test_candidates_and_integers_are_equally_frequent():
    spec = pg.dna_spec(
        pg.Dict(
            rate=pg.floatv(0.0, 1.0),
            kind=pg.oneof(list('abcd')),
            width=intv(0, 7),
            order=pg.permutate([1, 2, 3]),
        )
    )
    drawn = _first(QuasiRandom(), spec, 64)
    for id_, each in (('kind', 16), ('width', 8)):
        assert set(Counter(decisions[id_] for decisions in drawn).values()) == {each}
    orders = Counter(tuple(decisions[f'order[{i}]'] for i in range(3)) for decisions in drawn)
    assert len(orders) == 6
    assert max(orders.values()) <= 16


def test_conditional_decisions_are_evenly_spread():
    spec = pg.dna_spec(conditional())
    rates = [each.get('layer[=0/3].rate') for each in _first(QuasiRandom(), spec, 96)]
    quarters = Counter(int(rate * 4) for rate in rates if rate is not None)
    assert sum(quarters.values()) in range(30, 35)
    assert min(quarters[quarter] for quarter in range(4)) >= 6


def test_late_points_are_fast():
    spec = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(20)}))
    QuasiRandom().suggest(SuggestionContext(spec, 0, 1, list))  # Imports.
    took = []
    for number in range(10_000, 10_010):
        before = time.process_time()
        QuasiRandom().suggest(SuggestionContext(spec, 0, number, list))
        took.append(time.process_time() - before)
    assert min(took) < 0.01


def test_ineligible_points_are_replaced_from_another_sequence():
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.oneof([1, 2, 3])))
    first = ask(QuasiRandom(), spec, []).decisions

    def infeasible(decisions: Decisions) -> str | None:
        return 'y' if decisions['y'] == first['y'] else None

    second = ask(QuasiRandom(), spec, [], infeasible=infeasible).decisions
    assert second['y'] != first['y']
    tried = SuggestionContext(spec, 0, 1, lambda: [Observation(1, first, 'pending')])
    assert QuasiRandom().suggest(tried).decisions != first
