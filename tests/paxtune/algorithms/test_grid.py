import math
import sys

import pyglove as pg
import pytest

from paxtune.algorithms import Exhausted, Grid, Observation, SuggestionContext
from paxtune.algorithms.encoding.enumeration import enumeration
from paxtune.algorithms.grid import shuffled
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import (
    ask,
    check_algorithm,
    conditional,
    past,
    run,
)
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv


@pytest.mark.parametrize(
    'algorithm',
    [Grid(), Grid(shuffle=True), Grid(points_per_range=None), Grid(3, shuffle=True)],
)
@pytest.mark.fast(1)
def test_conforms(algorithm):
    check_algorithm(algorithm)


@pytest.mark.pax('Sweeping')
def test_infeasible_and_tried_experiments_are_skipped_in_order():
    spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a', 'b', 'c']), y=intv(1, 2)))
    history = [Observation(1, {'x': 1, 'y': 1}, 'completed', (0.0,))]

    def infeasible(decisions: Decisions) -> str | None:
        return 'b2' if decisions == {'x': 1, 'y': 2} else None

    for number in range(2, 6):
        history.append(past(number, ask(Grid(), spec, history, infeasible=infeasible)))
    with pytest.raises(Exhausted):
        ask(Grid(), spec, history, infeasible=infeasible)
    found = [tuple(trial.decisions.values()) for trial in history]
    assert found == [(1, 1), (0, 1), (0, 2), (2, 1), (2, 2)]


def test_points_of_ranges_are_even_on_their_scale():
    value = pg.Dict(rate=pg.floatv(1e-4, 1.0, 'log'), width=intv(1, 1000, 'log'), depth=intv(1, 3))
    spec = pg.dna_spec(value)
    trials = run(Grid(points_per_range=3), spec, 99, infeasible=0.0)
    found = {id_: sorted({trial.decisions[id_] for trial in trials}) for id_ in spec.decision_ids}
    assert len(trials) == 27
    assert found == {
        'rate': [1e-4, 1e-2, 1.0],
        'width': [1, 22, 1000],
        'depth': [1, 2, 3],
    }


def test_complete_ranges_try_every_integer():
    spec = pg.dna_spec(pg.Dict(x=intv(1, 9)))
    trials = run(Grid(points_per_range=None), spec, 99)
    assert [trial.decisions['x'] for trial in trials] == list(range(1, 10))


@pytest.mark.pax(7)
def test_complete_grids_reject_ranges_of_floats():
    block = pg.oneof([pg.Dict(rate=pg.floatv(0.0, 0.5)), None])
    spec = pg.dna_spec(pg.Dict(width=intv(1, 8), block=block))
    with pytest.raises(
        UserError, match=r'^block\.rate: Grid.*infinitely many.*pg\.oneof.*RandomSearch'
    ):
        Grid(points_per_range=None).check_space(spec, 1)
    Grid(points_per_range=None).check_space(pg.dna_spec(pg.Dict(width=intv(1, 8))), 0)
    Grid().check_space(spec, 0)


def test_shuffling_permutes_the_grid_by_seed():
    spec = pg.dna_spec(conditional())
    grid = [trial.decisions for trial in run(Grid(), spec, 999, infeasible=0.3)]
    orders = [
        [trial.decisions for trial in run(Grid(shuffle=True), spec, 999, seed=seed)]
        for seed in range(2)
    ]
    assert len(grid) == (3 * 5 + 10 + 1) * 5
    for order in orders:
        assert order != grid
        assert sorted(map(repr, order)) == sorted(map(repr, grid))
    assert orders[0] != orders[1]


@pytest.mark.parametrize('count', [1, 2, 3, 17, 64, 1000])
def test_a_shuffle_is_a_permutation(count):
    found = [shuffled(place, count, 5) for place in range(count)]
    assert sorted(found) == list(range(count))
    assert count < 17 or found != sorted(found)


def test_huge_grids_are_shuffled():
    spec = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(40)}))
    trials = run(Grid(shuffle=True), spec, 30)
    assert enumeration(spec, 5).size == 5**40
    firsts = [trial.decisions['x0'] for trial in trials]
    assert set(firsts) == {0.0, 0.25, 0.5, 0.75, 1.0}


def test_the_grid_continues_after_the_last_position():
    spec = pg.dna_spec(pg.Dict(x=pg.oneof(list(range(50)))))
    history = run(Grid(), spec, 40, infeasible=0.0)
    asked: list[Decisions] = []

    def infeasible(decisions: Decisions) -> str | None:
        asked.append(decisions)
        return 'even' if decisions['x'] % 2 == 0 else None

    context = SuggestionContext(spec, 0, 41, lambda: history, infeasible)
    assert Grid().suggest(context).decisions == {'x': 41}
    assert asked == [{'x': 40}, {'x': 41}]


def test_a_grid_of_another_size_starts_again():
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0)))
    history = run(Grid(3), spec, 2, infeasible=0.0)
    assert [trial.decisions['x'] for trial in history] == [0.0, 0.5]
    assert ask(Grid(5), spec, history).decisions == {'x': 0.25}


@pytest.mark.parametrize(
    ('made', 'count'),
    [
        (pg.floatv(1e6, 1e6 + 1e-6), 5),
        (pg.floatv(math.pi, math.pi + 1e-11), 5),
        (pg.floatv(math.pi, 4.0, 'log'), 5),
        (pg.floatv(-sys.float_info.max, sys.float_info.max), 5),
        (pg.floatv(5e-324, sys.float_info.max, 'log'), 5),
        (pg.floatv(1.0, math.nextafter(1.0, 2.0)), 2),
        (pg.floatv(math.pi, math.pi), 1),
        (intv(1, 2**53, 'log'), 5),
        (intv(1, 2**53, 'rlog'), 5),
    ],
)
def test_a_range_has_all_of_its_points_and_both_bounds(made, count):
    grid = enumeration(pg.dna_spec(pg.Dict(x=made)), 5)
    values = [grid.at(index)['x'] for index in range(grid.size)]
    assert len(values) == count
    assert (values[0], values[-1]) == (made.min_value, made.max_value)
    assert values == sorted(set(values))


def test_ordinary_points_are_round():
    grid = enumeration(pg.dna_spec(pg.Dict(x=pg.floatv(0.1, 0.7))), 7)
    assert [grid.at(index)['x'] for index in range(7)] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
