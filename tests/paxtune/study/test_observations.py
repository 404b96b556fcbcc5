"""Trials as algorithms see them."""

import pyglove as pg
import pytest

from paxtune.algorithms import Observation, RandomSearch
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward, Objectives, Reward
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.paxtune.studies import ask

LOSS = MetricReward('minimize', 'loss')
WARMUPS = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 0.1, 0.9]


def opened(reward: Reward | Objectives = LOSS) -> Study:
    """A study whose first trials have the warm-ups above."""
    search = Search(
        reward,
        Budget(20),
        RandomSearch(),
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


def test_a_stopped_trial_counts_with_its_predicted_end() -> None:
    with opened() as study:
        begin(study)
        trial = ask(study)
        trial.report(1, {'loss': 3.25})
        trial.stop('it is slow')
        (score,) = observed(study)[-1].scores
        assert trial.scores == (-3.25,) and score == pytest.approx(-1.0, abs=0.4)


def test_rewards_count_as_they_are_before_four_trials_have_ended() -> None:
    with opened() as study:
        first = ask(study)
        first.report(1, {'loss': 3.0})
        first.pause(1, 'the rung')
        assert [each.scores for each in observed(study)] == [(-3.0,)]


def test_several_rewards_count_as_they_are() -> None:
    with opened(Objectives([LOSS, MetricReward('minimize', 'other')])) as study:
        begin(study)
        assert [each.scores for each in observed(study)][-2:] == [(-3.05, -1.0), (-3.45, -1.0)]
