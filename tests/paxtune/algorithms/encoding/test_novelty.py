import functools

import numpy as np
import pyglove as pg
import pytest

from paxtune.algorithms import GPBandit, Observation, QuasiRandom, SuggestionContext
from paxtune.algorithms.encoding.novelty import EarlierTrials, first_new
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.ranges import intv


def _earlier(value, *decisions: Decisions, first: int = 1) -> EarlierTrials:
    trials = [Observation(first + i, each, 'infeasible') for i, each in enumerate(decisions)]
    return EarlierTrials(FlatSpace(pg.dna_spec(value)), trials)


@pytest.mark.parametrize(
    'decision, near, far',
    [
        (pg.floatv(0.0, 10.0), 5.009, 5.011),
        (pg.floatv(-10.0, 10.0), 4.981, 4.979),
        # The distance is one on the scale of the range: three powers of ten.
        (pg.floatv(0.05, 50.0, 'log'), 5.034, 5.036),
        (intv(1, 10_000), 14, 16),
        (intv(1, 500), 5, 6),
    ],
)
def test_a_number_within_a_thousandth_of_its_range_is_not_new(decision, near, far):
    earlier = _earlier(pg.Dict(x=decision, y=pg.floatv(0.0, 1.0)), {'x': 5, 'y': 0.5})
    assert earlier.has_close({'x': near, 'y': 0.5009})
    assert not earlier.has_close({'x': far, 'y': 0.5009})
    assert not earlier.has_close({'x': near, 'y': 0.5011})
    assert earlier.has_close({'x': far, 'y': 0.5011}, 0.01) == (far != 6)


@pytest.mark.parametrize(('count', 'distance'), [(1, 0.01), (25, 0.01), (50, 0.005)])
def test_running_trials_have_a_wider_distance_that_leaves_half_of_a_range(
    count: int, distance: float
) -> None:
    trials = [Observation(i + 1, {'x': i / 50}, 'pending') for i in range(count)]
    earlier = EarlierTrials(FlatSpace(pg.dna_spec({'x': pg.floatv(0.0, 1.0)})), trials)
    beyond = trials[-1].decisions['x'] + distance
    assert earlier.has_close({'x': beyond - 1e-6})
    assert not earlier.has_close({'x': beyond + 1e-6})
    assert not earlier.has_close({'x': beyond - 1e-6}, 0.0)
    assert earlier.has_close({'x': beyond + 0.004}, 0.02)


def test_other_candidates_and_inactive_numbers_are_new():
    value = pg.Dict(kind=pg.oneof(['a', pg.floatv(0.0, 1.0)]), x=pg.floatv(0.0, 1.0))
    earlier = _earlier(value, {'kind': 0, 'x': 0.0})
    assert earlier.has_close({'kind': 0, 'x': 0.0})
    assert not earlier.has_close({'kind': 1, 'kind[=1/2]': 0.0, 'x': 0.0})


def test_choices_alone_are_new_unless_they_were_tried():
    assert not _earlier(pg.Dict(x=pg.oneof([1, 2])), {'x': 0}).has_close({'x': 0})


def test_trials_of_earlier_studies_do_not_count():
    assert not _earlier({'x': pg.floatv(0.0, 1.0)}, {'x': 0.5}, first=0).has_close({'x': 0.5})
    assert not _earlier({'x': pg.floatv(0.0, 1.0)}).has_close({'x': 0.5})


def test_candidates_beside_a_known_point_are_skipped():
    spec = pg.dna_spec({'x': pg.floatv(0.0, 1.0)})
    trials = [Observation(1, {'x': 0.0}, 'completed', (1.0,))]
    context = SuggestionContext(spec, 0, 2, lambda: trials)
    earlier = EarlierTrials(FlatSpace(spec), trials)

    def found(*numbers: float) -> Decisions | None:
        return first_new(context, earlier, [{'x': x} for x in numbers], 0.001, 0.01)

    assert found(0.002, 0.0) == {'x': 0.002}
    assert found(0.0005, 0.002, 0.02, 0.5) == {'x': 0.02}
    assert found(0.0, 1e-9) is None


def test_initial_points_are_new():
    spec = pg.dna_spec({'x': pg.floatv(0.0, 1.0)})
    ((_, drawn),) = QuasiRandom().suggest(SuggestionContext(spec, 0, 2, list)).decisions.items()
    trials = [Observation(1, {'x': drawn + 1e-5}, 'completed', (1.0,))]
    made = GPBandit().suggest(SuggestionContext(spec, 0, 2, lambda: trials)).decisions['x']
    assert abs(made - drawn) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize('dimensions, count', [(1, 16), (2, 16), (3, 24)])
@pytest.mark.parametrize('is_last_pending', [False, True])
def test_an_optimum_at_a_bound_is_suggested_once(dimensions, count, is_last_pending):
    spec = pg.dna_spec({f'x{i}': pg.floatv(0.0, 1.0) for i in range(dimensions)})
    for seed in range(5):
        history: list[Observation] = []
        for number in range(1, count + 1):
            seen = list(history)
            if is_last_pending and seen:
                seen[-1] = Observation(seen[-1].id, seen[-1].decisions, 'pending')
            context = SuggestionContext(spec, seed, number, functools.partial(list, seen))
            made = GPBandit().suggest(context)
            score = (-sum(made.decisions.values()),)
            history.append(Observation(number, made.decisions, 'completed', score))
        points = np.array([list(trial.decisions.values()) for trial in history])
        apart = np.abs(points[:, None] - points[None]).max(axis=2)
        assert np.min(apart + np.eye(count)) > 1e-3
        assert max(trial.scores for trial in history) == (0.0,)
