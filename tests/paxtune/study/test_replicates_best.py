"""The best of a study whose decisions are tried more than once, also when confirmed afterwards."""

import random
from pathlib import Path

import pytest

from paxtune.config.budget import Budget
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.study.study import Study
from tests.factories.studies import ask, bare_state, best, confirmable, opened, ran
from tests.factories.toys import LOSS
from trainer.symbolic.errors import UserError


def is_done(study: Study) -> bool:
    """As it stands now: mypy takes a property for a constant."""
    return study.is_done


# --- Which is the best ---


def test_the_best_is_the_best_in_the_mean(two_decisions: Study) -> None:
    assert [trial.id for trial in two_decisions.top(9)] == [4, 3]
    assert [trial.reward for trial in two_decisions.top(2)] == [
        4.0,
        8.0,
    ]  # The medians.
    first, second = two_decisions.leaderboard
    assert first.rewards == (4.0,)
    assert first.standard_errors == pytest.approx((3**-0.5,))
    assert second.rewards == (6.0,)
    assert [trial.id for trial in second.trials] == [1, 2, 3]
    assert [trial.id for trial in two_decisions.pareto_front] == [4]


def test_of_two_the_worse_one_stands_for_both() -> None:
    with opened(replicates=2) as study:
        assert best(ran(study, 1.0, 3.0)).id == 2


def test_configurations_with_all_replicates_come_first() -> None:
    with opened(replicates=3) as study:
        ran(study, 5.0, 5.0, 5.0, 1.0)
        assert best(study).id == 1
        ran(study, 1.5)
        trial = ask(study)
        trial.report(1, {'loss': 9.0})
        trial.stop('no good')
        assert [trial.id for trial in study.top(2)] == [1, 5]
        study.retry(6)
        ran(study, 3.0)
        assert [trial.id for trial in study.top(2)] == [5, 1]


def test_a_decision_without_all_replicates_is_better_than_none() -> None:
    with opened(replicates=3) as study:
        assert best(ran(study, 5.0)).id == 1


def test_a_study_without_replicates_has_the_plain_order() -> None:
    rng = random.Random(0)
    losses = [rng.choice([1.0, 2.0, 3.0]) for _ in range(12)]
    with opened() as study:
        ran(study, *losses)
        order = sorted(range(12), key=losses.__getitem__)
        assert [trial.id - 1 for trial in study.top(12)] == order
        assert all(each.trials == [each.trial] for each in study.leaderboard)


def test_a_target_must_be_reached_in_the_mean(tmp_path: Path) -> None:
    with opened(tmp_path, replicates=2, budget=Budget(99, target_reward=2.0)) as study:
        ran(study, 1.0, 5.0, 1.0)
        assert not study.is_done
        ran(study, 2.0)
        assert (
            study.done_reason == 'trial 4 has reached the target reward 2.0 in the mean of 2 trials'
        )
        assert bare_state(study).is_done


def test_of_several_objectives_the_front_is_of_means() -> None:
    objectives = Objectives([LOSS, MetricReward('maximize', 'size')])
    with opened(objective=objectives, replicates=2) as study:
        ran(study, 1.0, 9.0, 4.0, 4.0, 6.0, 6.0)
        # The means are (5, 41), (4, 16) and (6, 36).
        assert [trial.id for trial in study.pareto_front] == [2, 3]
        assert study.leaderboard[0].rewards == (5.0, 41.0)
        added = study.confirm(times=3)
        assert [(trial.lineage.replicate_of_here, trial.lineage.replicate) for trial in added] == [
            (1, 3),
            (3, 3),
        ]


# --- Confirmed afterwards ---


def test_the_best_can_be_confirmed() -> None:
    with confirmable() as study:
        assert best(study).id == 3
        assert is_done(study)
        added = study.confirm(2, 3)
        assert [(trial.lineage.replicate_of_here, trial.lineage.replicate) for trial in added] == [
            (3, 2),
            (3, 3),
            (4, 2),
            (4, 3),
        ]
        assert not is_done(study)
        assert best(study).id == 3
        assert study.confirm(2, 3) == []
        ran(study, 4.5, 4.0, 2.4, 2.7)
        assert is_done(study)
        assert study.ask() is None
        assert best(study).id == 4
        assert study.leaderboard[0].rewards == pytest.approx((7.6 / 3,))
        ids = [trial.id for trial in study.top(9)]
        assert ids.index(2) == 1


def test_a_lucky_draw_does_not_beat_what_was_confirmed() -> None:
    with confirmable(budget=Budget(13)) as study:
        study.confirm(2, 4)
        ran(study, 5.0, 1.2, 3.5, 3.1, 0.9, 1.4)
        ran(study, 1.9)
        assert study.trial(13).lineage.replicate == 1
        lucky = next(each for each in study.leaderboard if each.trial.id == 13)
        assert lucky.rewards == (1.9,)
        assert best(study).id == 4
        assert study.leaderboard[0].rewards == pytest.approx((7.9 / 4,))


def test_confirming_needs_something_to_confirm() -> None:
    with opened() as study, pytest.raises(UserError, match='no trial of the study was completed'):
        study.confirm()
    with opened(objective=None) as study, pytest.raises(UserError, match='no reward'):
        study.confirm()
