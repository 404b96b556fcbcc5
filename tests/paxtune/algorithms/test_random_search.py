from collections import Counter
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import (
    Exhausted,
    RandomSearch,
    SuggestionContext,
)
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import (
    ask,
    check_algorithm,
    conditional,
    run,
)
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv


@pytest.mark.pax('Random search')
def test_conforms():
    check_algorithm(RandomSearch())


def test_random_search_finds_the_last_of_a_lopsided_space():
    # 'b' comes up once in 4096 draws for each of its place; the last one must still be found.
    value: Any = 'b'
    for _ in range(12):
        value = pg.oneof(['a', value])
    spec = pg.dna_spec(pg.Dict(x=value))
    trials = run(RandomSearch(), spec, 13)
    assert len({tuple(trial.decisions.items()) for trial in trials}) == 13
    with pytest.raises(Exhausted):
        ask(RandomSearch(), spec, trials)


def test_random_search_is_stable():
    spec = pg.dna_spec(conditional())
    drawn = [list(trial.decisions.values()) for trial in run(RandomSearch(), spec, 5)]
    assert drawn == [
        pytest.approx(values)
        for values in (
            [2, 0.7517201921444497],
            [1, 2, 0, 1, 0.644489693623421],
            [2, 0.505268131483236],
            [2, 0.5066151315574526],
            [1, 0, 0, 1, 0.5886791421307622],
        )
    ]


def test_random_search_reports_reasons_if_nothing_is_feasible():
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0)))

    def infeasible(decisions: Decisions) -> str:
        return 'x is large' if decisions['x'] > 0.2 else 'x is small'

    with pytest.raises(UserError) as error:
        ask(RandomSearch(), spec, [], infeasible=infeasible)
    lines = str(error.value).split('\n')
    assert lines[0].startswith('No feasible experiment was found: 2500 experiments of the search')
    assert [line.split(' times: ')[1] for line in lines[1:]] == ['x is large', 'x is small']


def test_random_search_gives_up_on_a_large_finite_space():
    spec = pg.dna_spec(pg.Dict(x=intv(1, 10**6), y=intv(1, 10**6)))
    with pytest.raises(UserError, match=r'2500 times: no$'):
        ask(RandomSearch(), spec, [], infeasible=lambda decisions: 'no')


def test_random_search_finds_the_one_feasible_experiment_of_a_small_space():
    spec = pg.dna_spec(pg.Dict(x=intv(1, 3000)))
    asked = Counter[int]()

    def infeasible(decisions: Decisions) -> str | None:
        asked[int(decisions['x'])] += 1
        return None if decisions['x'] == 2999 else 'no'

    assert ask(RandomSearch(), spec, [], infeasible=infeasible).decisions == {'x': 2999}
    assert max(asked.values()) == 1, 'nothing is asked twice'


def test_random_search_does_not_read_observations_for_infeasible_ranges():
    def read():
        raise AssertionError('read')

    def infeasible(decisions: Decisions) -> str | None:
        return None if decisions['rate'] > 0.9 else 'low'

    spec = pg.dna_spec(pg.Dict(rate=pg.floatv(0.0, 1.0)))
    suggestion = RandomSearch().suggest(SuggestionContext(spec, 0, 1, read, infeasible))
    assert suggestion.decisions['rate'] > 0.9


def test_random_search_does_not_repeat_the_finite_part_of_an_infinite_space():
    spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a', 'b', pg.floatv(0.0, 1.0)])))
    trials = run(RandomSearch(), spec, 30)
    assert len({tuple(trial.decisions.items()) for trial in trials}) == 30
