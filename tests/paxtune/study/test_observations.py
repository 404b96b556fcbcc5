"""Trials as algorithms see them."""

import pyglove as pg
import pytest

from paxtune.algorithms import (
    CMAES,
    NSGA2,
    TPE,
    Algorithm,
    Default,
    GPBandit,
    Observation,
    Portfolio,
    RegularizedEvolution,
)
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward, Objectives, Reward
from paxtune.storage.open_study import open_study
from paxtune.study.observations import with_predicted_ends
from paxtune.study.record import Status
from paxtune.study.study import Study
from tests.factories.studies import ask

LOSS = MetricReward('minimize', 'loss')
MODEL = TPE()
WARMUPS = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 0.1, 0.9]


def opened(reward: Reward | Objectives = LOSS, algorithm: Algorithm = MODEL) -> Study:
    """A study whose first trials have the warm-ups above."""
    search = Search(
        reward,
        Budget(40),
        algorithm,
        initial_trials=[{'warmup': warmup} for warmup in WARMUPS],
        scheduler=None,
    )
    return open_study(None, pg.Dict(warmup=pg.floatv(0.0, 1.0)), search=search)


def observed(study: Study) -> list[Observation]:
    return list(study.suggester.context(99).observations)


def begin(study: Study) -> None:
    """Trains all trials to the first step. The longer the warm-up is, the larger the loss there."""
    for warmup in WARMUPS:
        trial = ask(study)
        trial.report(1, {'loss': 3.0 + 0.5 * warmup, 'other': 1.0})
        if warmup in (0.1, 0.9):
            trial.pause(1, 'the rung')
        else:
            trial.report(2, {'loss': 1.0, 'other': 1.0})
            study.tell(trial)


def test_a_trial_that_is_behind_early_is_expected_to_catch_up() -> None:
    with opened() as study:
        begin(study)
        *ended, early, late = [each.scores[0] for each in observed(study)]
    assert ended == [-1.0] * 6
    assert -late == pytest.approx(1.0, abs=0.1) and -early == pytest.approx(1.0, abs=0.1)


@pytest.mark.pax('treats_early_stopped_trials_as_done')
def test_a_stopped_trial_counts_with_its_predicted_end() -> None:
    with opened() as study:
        begin(study)
        trial = ask(study)
        trial.report(1, {'loss': 3.25})
        trial.stop('it is slow')
        (score,) = observed(study)[-1].scores
        assert trial.view.scores == (-3.25,) and score == pytest.approx(-1.0, abs=0.4)


def test_rewards_count_as_they_are_before_four_trials_have_ended() -> None:
    with opened() as study:
        first = ask(study)
        first.report(1, {'loss': 3.0})
        first.pause(1, 'the rung')
        assert [each.scores for each in observed(study)] == [(-3.0,)]


@pytest.mark.parametrize('algorithm', [CMAES(), RegularizedEvolution()])
def test_algorithms_that_replay_trials_see_the_rewards_as_they_are(algorithm: Algorithm) -> None:
    with opened(algorithm=algorithm) as study:
        begin(study)
        assert [each.scores[0] for each in observed(study)] == [-1.0] * 6 + [-3.05, -3.45]


def test_a_reward_before_the_first_step_is_no_end() -> None:
    with opened() as study:
        for loss in (1.0, 2.0, 3.0, 4.0, 5.0):
            trial = ask(study)
            trial.report(0, {'loss': 9.0})
            trial.report(1, {'loss': loss})
            study.tell(trial)
        running = ask(study)
        running.report(0, {'loss': 9.0})
        *ended, last = observed(study)
    assert [each.scores for each in ended] == [(-1.0,), (-2.0,), (-3.0,), (-4.0,), (-5.0,)]
    assert last.state == 'pending' and not last.scores


def test_trials_that_stop_anywhere_count_with_scores_near_their_last_ones() -> None:
    with opened() as study:
        for number in range(30):
            trial = ask(study)
            for step in range(1, 41 if number < 6 else 10 + number):
                # Odd ones turn out to be worse.
                trial.report(step, {'loss': 3.0 - step / 20 + (step > 20 and number % 2)})
            if number < 6:
                study.tell(trial)
            else:
                trial.pause(9 + number, 'it is slow')
        scores = [each.scores[0] for each in observed(study)]
    assert scores[14:] == pytest.approx([-1.0, -2.0] * 8, abs=0.15)


@pytest.mark.parametrize('algorithm', [Default(), Portfolio(), GPBandit(), TPE()])
def test_models_learn_from_predicted_ends(algorithm: Algorithm) -> None:
    with opened(algorithm=algorithm) as study:
        begin(study)
        assert observed(study)[-1].scores == pytest.approx((-1.0,), abs=0.1)


def test_several_rewards_count_as_they_are() -> None:
    reward = Objectives([LOSS, MetricReward('minimize', 'other')])
    with opened(reward, NSGA2()) as study:
        begin(study)
        found = observed(study)
        assert [each.scores for each in found][-2:] == [(-3.05, -1.0), (-3.45, -1.0)]
        assert with_predicted_ends(study.trials, found, study.space.spec) == found


@pytest.mark.parametrize('algorithm', [TPE(), CMAES()])
def test_a_promoted_trial_keeps_its_score_while_it_is_trained_further(algorithm: Algorithm) -> None:
    with opened(algorithm=algorithm) as study:
        begin(study)
        before = observed(study)[-1]
        promoted = study.open_trial(before.id)
        promoted.promote('it is the best')
        assert promoted.view.status is Status.ACTIVE and observed(study)[-1] == before
        promoted.report(2, {'loss': 0.5, 'other': 1.0})
        assert observed(study)[-1] == before
        study.tell(promoted)
        assert observed(study)[-1].scores == (-0.5,)


def test_a_trial_whose_first_score_comes_after_a_level_keeps_it() -> None:
    with opened() as study:
        for number in range(40):
            trial = ask(study)
            for step in range(1, 61) if number < 6 else [10 + number]:
                trial.report(step, {'loss': 1.0 + number / 10})
            if number < 6:
                study.tell(trial)
            else:
                trial.pause(10 + number, 'it is slow')
        scores = [each.scores[0] for each in observed(study)]
    assert scores == pytest.approx([-1.0 - number / 10 for number in range(40)], abs=0.2)
