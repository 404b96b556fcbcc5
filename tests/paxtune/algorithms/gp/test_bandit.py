import math
import random
import subprocess
import sys

import numpy as np
import pyglove as pg
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from paxtune.algorithms import GPBandit, KnownValue, Observation, RandomSearch, SuggestionContext
from paxtune.algorithms.gp import search
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import (
    SPACES,
    ask,
    check_algorithm,
    conditional,
    run,
    searched,
    small,
)
from tests.servers.processes import ROOT, environment
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv


@pytest.mark.pax('Gaussian processes, CMA-ES')
@pytest.mark.slow
@pytest.mark.parametrize(
    ('acquisition', 'spaces'), [('log_ei', SPACES), ('ucb_pe', (conditional, small))]
)
def test_conforms(acquisition, spaces):
    check_algorithm(GPBandit(acquisition=acquisition, num_initial=2), spaces)


def _branin(decisions: Decisions) -> float:
    x, y = decisions['x'], decisions['y']
    return -(
        (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2
        + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x)
        + 10
    )


BRANIN = pg.Dict(x=pg.floatv(-5.0, 10.0), y=pg.floatv(0.0, 15.0))


def test_results_beat_random_search():
    spec = pg.dna_spec(BRANIN)
    ours, theirs = (
        max(t.scores[0] for t in searched(algorithm, spec, _branin, 20))
        for algorithm in (GPBandit(num_initial=4), RandomSearch())
    )
    assert ours > -0.5
    assert theirs < ours - 0.1


def suggested(is_reversed: bool = False, seed: int = 0) -> Decisions:
    spec = pg.dna_spec(pg.Dict(BRANIN, z=pg.oneof(['a', 'b'])))
    history = run(RandomSearch(), spec, 9, infeasible=0.1)
    return ask(GPBandit(), spec, history[::-1] if is_reversed else history, seed).decisions


def test_suggestions_are_a_function_of_seed_and_history_in_any_process():
    made = suggested()
    assert suggested(is_reversed=True) == made
    assert suggested(seed=1) != made
    elsewhere = f"""
import sys
from {__name__} import suggested
print(suggested(), 'jax' in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, '-c', elsewhere],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f'{made} False\n'


def test_the_number_of_cores_does_not_change_a_suggestion():
    threads: list[set[int]] = []

    def observed(decisions: Decisions) -> None:
        threads.append(_blas_threads())

    history = run(RandomSearch(), pg.dna_spec(BRANIN), 2, infeasible=0.0)
    with threadpool_limits(2, user_api='blas'):
        # The last check of feasibility is that of the suggestion.
        ask(GPBandit(num_initial=2), pg.dna_spec(BRANIN), history, 0, observed)
        after = _blas_threads()
    assert (threads[-1], after) == ({1}, {2})


def _blas_threads() -> set[int]:
    return {pool['num_threads'] for pool in threadpool_info() if pool['user_api'] == 'blas'}


@pytest.mark.slow
def test_infeasible_regions_are_avoided():
    spec = pg.dna_spec(BRANIN)

    def merit(decisions: Decisions) -> float | None:
        x, y = decisions['x'], decisions['y']
        return None if x > 5 else min(x, 4.0) + 0.1 * math.sin(y)

    # Suggestions depend on the last bits of the machine's arithmetic: three searches average it.
    searches = [searched(GPBandit(num_initial=6), spec, merit, 24, seed) for seed in range(3)]
    first = [trial.state for trials in searches for trial in trials[:12]]
    then = [trial.decisions['x'] for trials in searches for trial in trials[12:]]
    assert 'infeasible' in first
    assert sum(x > 5.5 for x in then) <= 7  # There are 36. It is 30 % of the space.
    assert max(t.scores[0] for trials in searches for t in trials if t.scores) > 4.05


def test_tight_constraints_are_satisfied():
    spec = pg.dna_spec(BRANIN)

    def why(decisions: Decisions) -> str | None:
        return None if abs(decisions['x'] - decisions['y']) < 0.5 else 'apart'

    algorithm = GPBandit(num_initial=4)
    trials = searched(algorithm, spec, lambda d: d['x'] + d['y'], 14, constraint=why)
    assert all(why(trial.decisions) is None for trial in trials)


def test_the_user_prior_attracts_early_suggestions_and_fades():
    spec = pg.dna_spec(BRANIN)
    history = [
        Observation(t.id, t.decisions, 'completed', (math.sin(t.id),))
        for t in run(RandomSearch(), spec, 6, infeasible=0.0)
    ]

    def suggested(strength: float) -> float:
        context = SuggestionContext(spec, 0, 7, lambda: history, prior={'x': KnownValue(8.0)})
        algorithm = GPBandit(num_initial=2, prior_strength=strength)
        return abs(algorithm.suggest(context).decisions['x'] - 8.0)

    assert suggested(1000.0) < 1.0
    assert suggested(1000.0) < suggested(0.0)


def _batch(count: int) -> tuple[float, np.ndarray]:
    """Trials that run at once after 20 random ones.

    Returns:
        The share of random trials that are worse than their median, and their distances from the
        nearest other one, in shares of the ranges [count].
    """
    spec = pg.dna_spec(BRANIN)
    history = searched(RandomSearch(), spec, _branin, 20)
    random_scores = [trial.scores[0] for trial in history]
    for number in range(21, 21 + count):
        history.append(Observation(number, ask(GPBandit(), spec, history).decisions, 'pending'))
    batch = [trial.decisions for trial in history[20:]]
    median = np.median([_branin(each) for each in batch])
    points = np.array([[each['x'] / 15, each['y'] / 15] for each in batch])
    apart = np.linalg.norm(points[:, None] - points, axis=-1) + np.eye(count)
    return float(np.mean(random_scores < median)), apart.min(axis=1)


@pytest.mark.parametrize('count', [8, pytest.param(64, marks=pytest.mark.slow)])
def test_trials_that_run_at_once_are_good_and_do_not_repeat_each_other(count: int):
    share_worse, apart = _batch(count)
    assert share_worse > 0.7
    assert apart.min() >= (0.01 if count <= 25 else 0.25 / count)


def test_large_studies_are_subsampled_by_pending_best_and_latest_trials():
    rng = random.Random(0)
    history = [
        Observation(i, {'x': rng.random(), 'y': 1.0}, 'completed', (rng.random(),))
        for i in range(1, 900)
    ]
    history.append(Observation(900, {'x': 0.1, 'y': 1.0}, 'pending'))
    chosen = search.subsampled(history)
    assert len(chosen) == search.MAX_TRIALS
    assert chosen[-1].state == 'pending'
    best = sorted(history, key=lambda trial: trial.scores, reverse=True)
    assert {trial.id for trial in best[:256]} <= {trial.id for trial in chosen}
    assert {trial.id for trial in history[-200:]} <= {trial.id for trial in chosen}
    assert [trial.id for trial in chosen] == sorted(trial.id for trial in chosen)


def test_studies_of_thousands_of_trials_have_a_smaller_model():
    history = [
        Observation(i, {'x': 1.0, 'y': 1.0}, 'completed', (-float(i),)) for i in range(1, 2002)
    ]
    chosen = [trial.id for trial in search.subsampled(history)]
    assert chosen == [*range(1, 129), *range(1874, 2002)]
    assert len(search.subsampled(history[:-1])) == search.MAX_TRIALS


def test_too_large_spaces_are_rejected():
    GPBandit().check_space(pg.dna_spec(conditional()), 1)
    many = pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(301)})
    with pytest.raises(UserError, match=r'at most 300 decisions.*are 301.*RegularizedEvolution'):
        GPBandit().check_space(pg.dna_spec(many), 1)
    wide = pg.Dict(kind=pg.oneof([f'k{i}' for i in range(2001)]), x=intv(1, 2**40))
    with pytest.raises(UserError, match=r'^kind: GPBandit .*at most 2000 candidates'):
        GPBandit().check_space(pg.dna_spec(wide), 1)
