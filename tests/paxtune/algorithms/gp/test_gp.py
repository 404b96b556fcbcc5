import itertools
import math
import random
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pyglove as pg
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms import GPBandit, Observation, RandomSearch, SuggestionContext
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp import model, search
from paxtune.algorithms.gp.acquisition import log_expected_improvement
from paxtune.algorithms.gp.encoding import encoder, encoding_spec
from paxtune.algorithms.gp.warping import warp
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import ask, check_algorithm, conditional, run
from tests.paxtune.spaces import values
from tests.properties import examples
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv


@pytest.fixture
def _exactly() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.slow
@pytest.mark.parametrize('acquisition', ['log_ei', 'ucb_pe'])
def test_it_conforms(acquisition):
    check_algorithm(GPBandit(acquisition, num_initial=2))


@pytest.mark.slow
@pytest.mark.usefixtures('_exactly')
@examples(10)
@given(values(), st.integers(0, 2**32))
def test_points_are_of_the_decisions_that_rows_mean(value, seed):
    spec = pg.dna_spec(value)
    space = FlatSpace(spec)
    box = encoding_spec(space)
    assert len(box.counts) == len(space)
    row = np.random.default_rng(seed).random(len(space))
    snapped, points = encoder(box)(jnp.asarray(row[None]))
    decisions = space.decode(row)
    expected = space.encode(decisions)
    is_open = ~np.isnan(expected)
    np.testing.assert_allclose(np.asarray(snapped)[0, is_open], expected[is_open], atol=1e-9)
    again = encoder(box)(jnp.asarray(np.nan_to_num(expected, nan=0.3)[None]))[1]
    np.testing.assert_allclose(points, again, atol=1e-9)
    assert points.shape == (1, len(box.columns))


def _observed(count: int, size: int, num_pending: int = 0) -> model.TrainingData:
    rng = np.random.default_rng(0)
    points, values = rng.random((32, 2))[:size], rng.normal(size=32)[:size]
    points[count + num_pending :] = 0.0
    values[count:] = 0.0
    index = np.arange(size)
    return model.TrainingData(
        points, values, index < count, index < count + num_pending, np.zeros(size, bool)
    )


@pytest.mark.usefixtures('_exactly')
@pytest.mark.slow
def test_padding_changes_nothing():
    theta = np.array([0.2, -3.0, -1.0, 0.5])
    columns = np.arange(2, dtype=np.int32)
    at = np.random.default_rng(1).random((7, 2))
    found = [
        model.predict(model.posterior(theta, _observed(9, size, 2), columns), at)
        for size in (11, 16, 32)
    ]
    for one, other in zip(found[0], found[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-9)


@pytest.mark.usefixtures('_exactly')
@pytest.mark.contract
def test_predictions_are_those_of_the_textbook():
    theta = np.array([0.2, -3.0, -1.0, 0.5])
    observed = _observed(9, 16)
    at = np.random.default_rng(1).random((7, 2))

    def kernel(a, b):
        far = np.sqrt((((a[:, None] - b[None]) / np.exp(theta[2:])) ** 2).sum(-1) * 5)
        return np.exp(theta[0]) * (1 + far + far**2 / 3) * np.exp(-far)

    points, values = observed.points[:9], observed.values[:9]
    inverse = np.linalg.inv(kernel(points, points) + np.exp(theta[1]) * np.eye(9))
    like = kernel(at, points)
    mean, deviation, feasible = model.predict(
        model.posterior(theta, observed, np.arange(2, dtype=np.int32)), at
    )
    np.testing.assert_allclose(mean, like @ inverse @ values, rtol=1e-5)
    variance = np.exp(theta[0]) - np.einsum('ij,jk,ik->i', like, inverse, like)
    np.testing.assert_allclose(deviation, np.sqrt(variance), rtol=1e-5)
    assert np.all(np.exp(feasible) > 0.99)


@pytest.mark.usefixtures('_exactly')
@pytest.mark.slow
def test_running_trials_lower_the_uncertainty_around_them_and_not_the_mean():
    theta = np.array([0.2, -3.0, -1.0, 0.5])
    columns = np.arange(2, dtype=np.int32)
    without, with_one = _observed(9, 16), _observed(9, 16, 1)
    at = np.asarray(with_one.points)[9:10]
    before = model.predict(model.posterior(theta, without, columns), at)
    after = model.predict(model.posterior(theta, with_one, columns), at)
    np.testing.assert_allclose(before[0], after[0], rtol=1e-9)
    assert after[1][0] < 0.7 * before[1][0]


@pytest.mark.usefixtures('_exactly')
@pytest.mark.contract
def test_the_fit_finds_the_decision_that_matters():
    rng = np.random.default_rng(0)
    points = rng.random((32, 3))
    values = warp(np.sin(6 * points[:, 1]))
    everything = np.ones(32, bool)
    observed = model.TrainingData(points, values, everything, everything, ~everything)
    theta = model.fit(observed, np.arange(3, dtype=np.int32), rng)
    lengths = theta[2:]
    assert lengths[1] + 1 < min(lengths[0], lengths[2])
    assert theta[1] < math.log(1e-2), 'there is no noise'


@pytest.mark.usefixtures('_exactly')
@pytest.mark.contract
def test_expected_improvement_near_and_far():
    mean, deviation, best = np.array([0.5, -1.0, 0.0]), np.array([1.0, 0.3, 2.0]), 0.2
    z = (mean - best) / deviation
    expected = deviation * (
        (np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)) + z * scipy.special.ndtr(z)
    )
    found = log_expected_improvement(jnp.asarray(mean), jnp.asarray(deviation), best)
    np.testing.assert_allclose(found, np.log(expected), rtol=1e-9)
    far = log_expected_improvement(jnp.array([-4.9, -5.1, -40.0, -400.0]), jnp.ones(4), 0.0)
    assert np.all(np.isfinite(far))
    assert np.all(np.diff(far) < 0)
    # E[max(x, 0)] of a normal variable far below: φ(z) / z².
    np.testing.assert_allclose(
        far[2], -800 - math.log(2 * math.pi) / 2 - 2 * math.log(40), atol=0.01
    )


@examples(60)
@given(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=20))
def test_warping_keeps_the_order(scores):
    given_scores = np.array(scores)
    warped = warp(given_scores)
    assert np.all(np.isfinite(warped))
    order = np.argsort(given_scores, kind='stable')
    assert np.all(np.diff(warped[order]) >= -1e-9)
    for one, other in itertools.pairwise(order):
        if scores[one] == scores[other]:
            assert warped[one] == warped[other]


def _branin(decisions: Decisions) -> float:
    x, y = decisions['x'], decisions['y']
    return -(
        (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2
        + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x)
        + 10
    )


BRANIN = pg.Dict(x=pg.floatv(-5.0, 10.0), y=pg.floatv(0.0, 15.0))


def _searched(
    algorithm, spec, merit, count, infeasible=lambda _: False, why=lambda _: None, seed=0
):
    history: list[Observation] = []
    for number in range(1, count + 1):
        decisions = ask(algorithm, spec, history, seed, why).decisions
        if infeasible(decisions):
            history.append(Observation(number, decisions, 'infeasible'))
        else:
            history.append(Observation(number, decisions, 'completed', (merit(decisions),)))
    return history


@pytest.mark.slow
@pytest.mark.sentinel
def test_it_finds_what_random_search_does_not():
    spec = pg.dna_spec(BRANIN)
    ours, theirs = (
        max(t.scores[0] for t in _searched(algorithm, spec, _branin, 20))
        for algorithm in (GPBandit(num_initial=4), RandomSearch())
    )
    assert ours > -0.5
    assert theirs < ours - 0.1


@pytest.mark.slow
def test_nothing_is_compiled_between_two_sizes(compilations):
    # A box that no other test has, so that nothing is compiled before.
    spec = pg.dna_spec(pg.Dict(BRANIN, z=pg.oneof(['a', 'b', 'c', 'd'])))
    history = run(RandomSearch(), spec, 16, infeasible=0.1)
    ask(GPBandit(), spec, history[:14])
    assert compilations
    compilations.clear()
    ask(GPBandit(), spec, history[:15])
    ask(GPBandit(), spec, history)
    ask(GPBandit(), spec, history, seed=3)
    assert not compilations


@pytest.mark.slow
def test_it_leaves_the_precision_of_others_alone():
    spec = pg.dna_spec(BRANIN)
    history = run(RandomSearch(), spec, 8, infeasible=0.0)
    before = jax.config.values.copy()
    suggestion = ask(GPBandit(), spec, history)
    assert jnp.ones(()).dtype == jnp.float32
    assert jax.config.values == before
    # A function of the request: also with the history in another order.
    assert ask(GPBandit(), spec, list(reversed(history))) == suggestion


@pytest.mark.slow
def test_it_keeps_away_from_what_turned_out_to_be_infeasible():
    spec = pg.dna_spec(BRANIN)

    def merit(decisions: Decisions) -> float:
        return min(decisions['x'], 4.0) + 0.1 * math.sin(decisions['y'])

    def too_large(decisions: Decisions) -> bool:
        return decisions['x'] > 5

    # Suggestions depend on the last bits of the machine's arithmetic: three searches even that out.
    searches = [
        _searched(GPBandit(num_initial=6), spec, merit, 24, too_large, seed=seed)
        for seed in range(3)
    ]
    first = [trial.state for trials in searches for trial in trials[:12]]
    then = [trial.state for trials in searches for trial in trials[12:]]
    assert 'infeasible' in first
    assert then.count('infeasible') <= 10  # A third of the space is.
    assert max(t.scores[0] for trials in searches for t in trials if t.scores) > 4.05


@pytest.mark.slow
def test_a_constraint_that_leaves_little_is_respected():
    spec = pg.dna_spec(BRANIN)

    def why(decisions: Decisions) -> str | None:
        return None if abs(decisions['x'] - decisions['y']) < 0.5 else 'apart'

    trials = _searched(GPBandit(num_initial=4), spec, lambda d: d['x'] + d['y'], 14, why=why)
    assert all(why(trial.decisions) is None for trial in trials)


@pytest.mark.slow
def test_a_belief_draws_first_suggestions_near_and_fades():
    spec = pg.dna_spec(BRANIN)
    history = [
        Observation(t.id, t.decisions, 'completed', (math.sin(t.id),))
        for t in run(RandomSearch(), spec, 6, infeasible=0.0)
    ]

    def suggested(strength: float) -> float:
        context = SuggestionContext(spec, 0, 7, lambda: history, prior={'x': 8.0})
        algorithm = GPBandit(num_initial=2, prior_strength=strength)
        return abs(algorithm.suggest(context).decisions['x'] - 8.0)

    assert suggested(1000.0) < 1.0
    assert suggested(1000.0) < suggested(0.0)


def test_large_studies_are_modelled_by_running_best_and_latest_trials():
    rng = random.Random(0)
    history = [
        Observation(i, {'x': rng.random(), 'y': 1.0}, 'completed', (rng.random(),))
        for i in range(1, 900)
    ]
    history.append(Observation(900, {'x': 0.1, 'y': 1.0}, 'pending'))
    chosen = search._subsample(history)
    assert len(chosen) == search.SIZES[-1]
    assert chosen[-1].state == 'pending'
    best = sorted(history, key=lambda trial: trial.scores, reverse=True)
    assert {trial.id for trial in best[:256]} <= {trial.id for trial in chosen}
    assert {trial.id for trial in history[-200:]} <= {trial.id for trial in chosen}
    assert [trial.id for trial in chosen] == sorted(trial.id for trial in chosen)


@pytest.mark.parametrize('objectives', [0, 2])
def test_it_models_one_reward(objectives):
    with pytest.raises(UserError, match=f'one reward; there are {objectives}'):
        GPBandit().check_space(pg.dna_spec(BRANIN), objectives)


@pytest.mark.slow
def test_it_refuses_what_is_too_large_to_be_modelled():
    GPBandit().check_space(pg.dna_spec(conditional()), 1)
    many = pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(301)})
    with pytest.raises(UserError, match=r'at most 300 decisions.*are 301.*RegularizedEvolution'):
        GPBandit().check_space(pg.dna_spec(many), 1)
    wide = pg.Dict(kind=pg.oneof([f'k{i}' for i in range(2001)]), x=intv(1, 2**40))
    with pytest.raises(UserError, match=r'^kind: GPBandit .*at most 2000 candidates'):
        GPBandit().check_space(pg.dna_spec(wide), 1)
