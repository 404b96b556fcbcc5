import dataclasses

import pyglove as pg
import pytest

from paxtune.algorithms import HillClimbing, Observation, RandomSearch
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import (
    ask,
    best_of,
    bowl_spec,
    check_algorithm,
    conditional,
    run,
    searched,
)


@pytest.mark.parametrize('algorithm', [HillClimbing(), HillClimbing(starts=1, patience=1)])
@pytest.mark.fast(1)
def test_conforms(algorithm):
    check_algorithm(algorithm)


def _climbed(scores: list[float | None], algorithm: HillClimbing) -> list[Observation]:
    """Trials that come in turn; one without a score is infeasible."""
    given = iter(scores)
    return searched(algorithm, SPEC, lambda made: next(given), len(scores))


SPEC = pg.dna_spec(conditional())


def test_children_of_the_best_trial_differ_by_one_step():
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(1e-4, 1.0, 'log'), y=pg.floatv(0.0, 1.0)))
    trial = Observation(1, {'x': 0.01, 'y': 0.5}, 'completed', (1.0,))
    worse = Observation(2, {'x': 0.9, 'y': 0.9}, 'completed', (0.0,))
    algorithm = HillClimbing(starts=1, step=0.02)
    for seed in range(20):
        suggestion = ask(algorithm, spec, [trial, worse], seed)
        child = suggestion.decisions
        assert suggestion.parent == 1
        assert (child['x'] == 0.01) != (child['y'] == 0.5)
        assert 0.003 < child['x'] < 0.03
        assert 0.4 < child['y'] < 0.6


def test_concurrent_trials_share_a_parent_and_differ():
    history = _climbed([1.0, 3.0, 2.0], HillClimbing(starts=3))
    for number in range(4, 12):
        suggestion = ask(HillClimbing(starts=3), SPEC, history)
        assert suggestion.parent == 2
        assert suggestion.decisions not in [trial.decisions for trial in history]
        history.append(
            Observation(number, suggestion.decisions, 'pending', (), suggestion.algorithm_state)
        )


def test_exhausted_patience_causes_a_restart():
    algorithm = HillClimbing(starts=1, patience=3)
    history = _climbed([5.0, 1.0, None, 2.0, 0.0, 1.0, 0.5], algorithm)
    assert [trial.algorithm_state['climb'] for trial in history] == list('0000111')
    # The second climb begins with trial 5; trial 6 is better.
    assert [trial.algorithm_state.get('from') for trial in history] == [
        None,
        *'111',
        None,
        *'56',
    ]


def test_an_improvement_resets_the_patience():
    history = _climbed([5.0, 1.0, 2.0, 6.0, 1.0, 1.0, 1.0], HillClimbing(starts=1, patience=3))
    assert [trial.algorithm_state.get('from') for trial in history] == [None, *'111444']
    assert ask(HillClimbing(starts=1, patience=3), SPEC, history).parent is None


def test_the_first_climb_starts_at_the_best_earlier_trial():
    drawn = run(RandomSearch(), SPEC, 6, infeasible=0.0)
    earlier = [dataclasses.replace(trial, id=trial.id - 6) for trial in drawn]
    suggestion = ask(HillClimbing(), SPEC, earlier)
    best = max(earlier, key=lambda trial: trial.scores)
    assert suggestion.algorithm_state['from'] == str(best.id)
    assert suggestion.parent is None


def test_constant_rewards_do_not_end_the_search():
    def flat(decisions: Decisions) -> float:
        return 1.0

    assert best_of(HillClimbing(starts=1, patience=2), bowl_spec(), flat, 12, 0) == 1.0
