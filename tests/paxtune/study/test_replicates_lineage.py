"""Replicates with retries, deletions, imports, early stopping and retention."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from paxtune.config.retention import Retention
from paxtune.schedulers import MedianStopping
from paxtune.study.checkpoint_retention import CheckpointCleaner
from paxtune.study.export import export
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.trial_import import import_trials
from paxtune.study.trial_paths import trial_directory
from tests.factories.studies import ask, bare_state, best, confirmable, opened, ran, tried
from tests.factories.studies import finish_with as finish
from trainer.symbolic.errors import UserError


def test_a_retry_takes_the_place_of_what_it_retries() -> None:
    with opened(replicates=2) as study:
        ran(study, 5.0)
        ask(study).fail('a crash')
        study.retry(2)
        ran(study, 7.0)
        assert tried(study) == [(1, None, 1), (2, 1, 2), (3, 1, 2)]
        assert study.leaderboard[0].rewards == (6.0,)
        assert study.leaderboard[0].is_complete
        study.retry(1)
        ran(study, 5.5, 1.0)
        # A retry of the first is no decision of its own, and asks for no repeats.
        assert tried(study)[3:] == [(4, None, 1), (5, None, 1)]
        assert study.leaderboard[0].rewards == (6.25,)


def test_a_first_that_was_retried_gets_its_repeats() -> None:
    with opened(replicates=2) as study:
        ask(study).fail('a crash')
        study.retry(1)
        ran(study, 5.0, 7.0)
        assert tried(study) == [(1, None, 1), (2, None, 1), (3, 2, 2)]
        assert study.leaderboard[0].rewards == (6.0,)


def end_infeasible(trial: RunningTrial) -> None:
    trial.fail('a crash')


def end_stopped(trial: RunningTrial) -> None:
    trial.report(1, {'loss': 0.5})
    trial.stop('no good')


@pytest.mark.parametrize('end', [None, end_infeasible, end_stopped])
@pytest.mark.parametrize('confirms_first', [False, True])
def test_a_retry_without_a_result_leaves_the_best_as_it_is(
    end: Callable[[RunningTrial], None] | None, confirms_first: bool
) -> None:
    with confirmable() as study:
        assert best(study).id == 3
        if confirms_first:
            study.confirm(1, 2)
        study.retry(3)
        if not confirms_first:
            (added,) = study.confirm(1, 2)
            assert added.lineage.replicate_of == 3
        assert best(study).id == 3
        assert [trial.id for trial in study.candidates if trial.id == 3] == [3]
        assert bare_state(study).best.trial.id == 3  # type: ignore[union-attr]
        if end is not None:
            waiting = [ask(study), ask(study)]
            retry = next(each for each in waiting if each.lineage.retry_of == 3)
            end(retry)
            assert best(study).id == 3
            finish(next(each for each in waiting if each is not retry), 2.25)
            assert study.leaderboard[0].rewards == (2.125,)


def test_a_retry_with_a_result_replaces_the_best() -> None:
    with confirmable() as study:
        study.retry(3)
        study.confirm(1, 2)
        ran(study, 50.0, 50.0)
        assert best(study).id == 4


def test_a_stopped_trial_is_replaced_by_a_completed_one_only() -> None:
    with opened(replicates=2) as study:
        ran(study, 5.0)
        end_stopped(ask(study))
        study.retry(2)
        assert not study.leaderboard[0].is_complete
        end_infeasible(ask(study))
        assert not study.leaderboard[0].is_complete
        study.retry(2)
        ran(study, 7.0)
        assert study.leaderboard[0].rewards == (6.0,)


def test_a_repeat_that_was_deleted_comes_again(two_decisions: Study) -> None:
    two_decisions.delete_trial(2)
    ran(two_decisions, 2.0)
    assert tried(two_decisions)[-1] == (7, 1, 2)
    two_decisions.delete_trial(1)
    assert two_decisions.leaderboard[1].rewards == (5.0,)
    ran(two_decisions, 2.0)
    assert two_decisions.trials[-1].lineage.replicate == 1


def test_replicates_stay_together_in_forks(two_decisions: Study, tmp_path: Path) -> None:
    trials = json.loads(json.dumps(export(two_decisions)))['trials']
    assert [(each['replicate'], each['replicate_of']) for each in trials[:3]] == [
        (1, None),
        (2, 1),
        (3, 1),
    ]
    with opened(replicates=2) as other:
        ran(other, 7.0, 7.0)
        assert import_trials(other, trials, '/there') == 6
        assert [each.rewards for each in other.leaderboard] == [(4.0,), (6.0,), (7.0,)]
        ran(other, 1.0)
        # What ran elsewhere is not tried again here.
        assert other.trials[-1].lineage.replicate == 1
    with opened() as other:
        import_trials(other, [each for each in trials if each['trial'] != 1], '/there')
        assert [each.rewards for each in other.leaderboard] == [(4.0,), (8.5,)]
        other.confirm(1, 4)
        ran(other, 6.0)
        assert other.leaderboard[0].rewards == (4.5,)
    with pytest.raises(UserError, match='not a trial'), opened() as other:
        import_trials(other, [trials[1] | {'replicate_of': 'one'}], '/there')


def test_tables_tell_of_repeats(two_decisions: Study) -> None:
    table = two_decisions.to_pandas()
    assert table['replicate'].tolist() == [1, 2, 3, 1, 2, 3]
    assert table['replicate_of'].tolist()[4:] == [4, 4]


def test_early_stopping_compares_all_trials() -> None:
    scheduler = MedianStopping(min_trials=2)
    with opened(replicates=2, scheduler=scheduler) as study:
        ran(study, 1.0, 1.2)
        trial = ask(study)
        trial.report(1, {'loss': 5.0})
        assert study.decide(trial) is not None


def test_checkpoints_stay_until_it_is_clear_which_trial_stands_for_a_decision(
    tmp_path: Path,
) -> None:
    after = [
        (1.0, [1]), (9.0, [1, 2]), (2.0, [3]),
        (1.5, [3, 4]), (2.5, [3, 4, 5]), (3.5, [5]),
        (0.0, [5, 7]), (0.0, [5, 7, 8]), (0.0, [7]),
    ]  # fmt: skip
    with opened(tmp_path, replicates=3, retention=Retention(best=1)) as study:
        for loss, kept in after:
            trial = ask(study)
            (trial_directory(study.directory, trial.view) / 'checkpoints' / '2').mkdir(parents=True)
            finish(trial, loss)
            CheckpointCleaner(study).remove_unneeded()
            held = [trial_directory(study.directory, each) / 'checkpoints' for each in study.trials]
            assert [number for number, path in enumerate(held, 1) if path.exists()] == kept
            assert best(study).id in kept
