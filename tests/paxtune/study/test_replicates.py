"""Decisions that are tried more than once, each time with another training seed."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import studies, train
from paxtune.algorithms import (
    Algorithm,
    RandomSearch,
    RegularizedEvolution,
    Suggestion,
    SuggestionContext,
)
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.retention import Retention
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.reports.overview import Overview
from paxtune.running.progress import Progress
from paxtune.running.runners import experiments
from paxtune.schedulers import MedianStopping
from paxtune.search import _flags, summary, tunable_for
from paxtune.search_space.differences import differences
from paxtune.search_space.parameters import to_parameters
from paxtune.storage.open_study import load_study, open_study
from paxtune.storage.vizier_store import DATABASE
from paxtune.study import checkpoint_retention
from paxtune.study.export import export
from paxtune.study.record import TrialRecord
from paxtune.study.replicate_seeds import reseeded
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.transitions import claim
from paxtune.study.trial_import import import_trials
from paxtune.study.trial_paths import trial_directory
from tests.paxtune.studies import ask, best
from tests.paxtune.tunables import Rates
from trainer.inputs import MixtureInput, StdlibInput
from trainer.symbolic.errors import UserError

LOSS = MetricReward('minimize', 'loss')


def opened(directory: Path | None = None, space: Any = None, **fields: Any) -> Study:
    given = {'objective': LOSS, 'budget': Budget(99), 'algorithm': RandomSearch()} | fields
    search = Search(**given)
    return open_study(directory, space or pg.Dict(x=pg.floatv(0.0, 100.0)), search=search)


def finish(trial: RunningTrial, loss: float) -> RunningTrial:
    trial.report(1, {'loss': loss, 'size': loss**2})
    trial.complete()
    return trial


def ran(study: Study, *losses: float) -> Study:
    """The study, with so many more trials."""
    for loss in losses:
        finish(ask(study), loss)
    return study


def is_done(study: Study) -> bool:
    """As it stands now: mypy takes a property for a constant."""
    return study.is_done


def is_exhausted(study: Study) -> bool:
    """The same."""
    return study.exhausted


def tried(study: Study) -> list[tuple[int, int | None, int]]:
    return [
        (trial.id, trial.lineage.replicate_of_here, trial.lineage.replicate)
        for trial in study.trials
    ]


@pytest.fixture
def study() -> Iterator[Study]:
    """Two decisions, each tried three times: the first is luckier, the second better."""
    with opened(replicates=3) as made:
        yield ran(made, 1.0, 9.0, 8.0, 4.0, 5.0, 3.0)


# --- Which trials there are ---


def test_repeats_come_right_after_the_first(study: Study) -> None:
    assert tried(study) == [(1, None, 1), (2, 1, 2), (3, 1, 3), (4, None, 1), (5, 4, 2), (6, 4, 3)]
    assert len({trial.decisions['x'] for trial in study.trials}) == 2
    assert [trial.lineage.origin for trial in study.trials[:3]] == [
        'algorithm',
        'replicate',
        'replicate',
    ]


def test_replicates_keep_their_order_with_several_workers(tmp_path: Path) -> None:
    with opened(tmp_path, replicates=3, budget=Budget(7)) as study:
        running = [_start_next(study) for _ in range(4)]
        assert tried(study) == [(1, None, 1), (2, 1, 2), (3, 1, 3), (4, None, 1)]
        for trial in reversed(running):
            finish(trial, 1.0)
        ran(study, 1.0, 1.0, 1.0)
        assert tried(study)[4:] == [(5, 4, 2), (6, 4, 3), (7, None, 1)]
        assert study.is_done


def _start_next(study: Study) -> RunningTrial:
    number = len(study.trials) + 1
    suggestion, lineage = study.suggester.next(number)
    parameters = to_parameters(study.space.spec, suggestion.decisions)
    record = TrialRecord(parameters, id=number, lineage=lineage)
    return study._add(claim(record, 'a', {}, study.store.now()))


def test_decisions_are_those_of_a_study_without_repeats() -> None:
    with opened(replicates=3) as often, opened() as once:
        ran(often, *[1.0] * 12)
        ran(once, *[1.0] * 4)
        assert [trial.decisions for trial in often.trials[::3]] == [
            trial.decisions for trial in once.trials
        ]


@pytest.mark.parametrize('end', ['stop', 'fail'])
def test_stopped_and_infeasible_trials_have_no_further_replicates(end: str) -> None:
    with opened(replicates=2) as study:
        trial = ask(study)
        trial.report(1, {'loss': 1.0})
        getattr(trial, end)('no good')
        ran(study, 1.0, 1.0, 1.0)
        assert tried(study) == [(1, None, 1), (2, None, 1), (3, 2, 2), (4, None, 1)]


def test_a_finite_space_is_tried_so_often_and_the_study_is_done_then(tmp_path: Path) -> None:
    space = pg.Dict(x=pg.oneof([1, 2, 3]))
    with opened(tmp_path, space, replicates=2, budget=Budget(None)) as study:
        assert study.num_trials == 6
        for done in range(6):
            assert not study.is_done
            assert Overview.read(tmp_path / DATABASE).is_done is False
            ran(study, float(done))
        assert study.is_done
        assert Overview.read(tmp_path / DATABASE).is_done
        assert study.ask() is None


def test_an_exhausted_space_still_has_replicates() -> None:
    space = pg.Dict(x=pg.oneof([1, 2]))
    with opened(space=space, replicates=3) as study:
        ask(study).fail('no memory')
        ran(study, 1.0, 1.0)
        assert not is_exhausted(study)
        ran(study, 1.0)
        assert study.ask() is None
        assert is_exhausted(study)
        assert study.is_done


def test_seeds_and_added_trials_have_repeats_too() -> None:
    with opened(replicates=2, initial_trials=[{'x': 1.0}, {'x': 2.0}]) as study:
        ran(study, 1.0, 1.0)
        study.add({'x': 3.0})
        ran(study, 1.0, 1.0, 1.0, 1.0)
        assert [trial.decisions['x'] for trial in study.trials] == [1.0, 1.0, 3.0, 3.0, 2.0, 2.0]


def test_a_restart_goes_on_in_the_same_way(tmp_path: Path) -> None:
    losses = [float(i * 7 % 5) for i in range(12)]
    algorithm = RegularizedEvolution(2, 2)
    with opened(tmp_path / 'one', replicates=3, algorithm=algorithm) as straight:
        ran(straight, *losses)
        expected = [(trial.decisions, trial.lineage.parent) for trial in straight.trials]
    for loss in losses:
        with opened(tmp_path / 'other', replicates=3, algorithm=algorithm) as study:
            ask(study)  # Of a process that is killed now.
        with opened(tmp_path / 'other', replicates=3, algorithm=algorithm) as study:
            ran(study, loss)
    with load_study(tmp_path / 'other') as study:
        assert [(trial.decisions, trial.lineage.parent) for trial in study.trials] == expected
        assert {trial.lineage.parent for trial in study.trials[6:]} <= {1, 4, 7}
        assert None not in {trial.lineage.parent for trial in study.trials[6:]}


def test_repeats_cannot_change_while_a_study_goes_on(tmp_path: Path) -> None:
    opened(tmp_path, replicates=2).close()
    with pytest.raises(UserError, match='replicates'):
        opened(tmp_path, replicates=3)
    with pytest.raises(ValueError, match='replicates must be at least 1: 0'):
        Search(LOSS, replicates=0)


# --- What the algorithm sees ---


class Looking(Algorithm):
    """Draws at random, and remembers what it has seen."""

    def suggest(self, context: SuggestionContext) -> Suggestion:
        seen[:] = context.observations
        drawn = RandomSearch().suggest(context)
        return Suggestion(drawn.decisions, algorithm_state={'number': str(context.number)})


seen: list[Any] = []


def test_algorithms_see_a_decision_once() -> None:
    with opened(replicates=3, algorithm=Looking()) as study:
        ran(study, 1.0, 2.0, 6.0)
        trial = ask(study)
        assert [(each.id, each.state, each.scores) for each in seen] == [(1, 'completed', (-3.0,))]
        finish(trial, 1.0)
        trial = ask(study)
        trial.report(1, {'loss': 4.0})
        trial.stop('no good')
        trial = ask(study)
        # What was stopped early counts, as it does alone.
        assert [(each.id, each.scores) for each in seen] == [(1, (-3.0,)), (4, (-2.5,))]
        trial.fail('no memory')
        ran(study, 1.0)
        assert [(each.id, each.state) for each in seen][2:] == [(6, 'infeasible')]
        assert [each.algorithm_state for each in seen] == [
            {'number': '1'},
            {'number': '2'},
            {'number': '3'},
        ]


def test_a_decision_is_pending_until_a_trial_of_it_was_completed() -> None:
    with opened(replicates=2) as study:
        one = _start_next(study)
        two = _start_next(study)
        two.fail('no memory')
        history = study.suggester._history(3)
        assert [(each.id, each.state) for each in history] == [(1, 'pending')]
        finish(one, 1.0)
        history = study.suggester._history(3)
        assert [(each.id, each.state, each.scores) for each in history] == [
            (1, 'completed', (-1.0,))
        ]


# --- Which is the best ---


def test_the_best_is_the_best_in_the_mean(study: Study) -> None:
    assert [trial.id for trial in study.top(9)] == [4, 3]
    assert [trial.reward for trial in study.top(2)] == [4.0, 8.0]  # Those of the median.
    first, second = study.leaderboard
    assert first.rewards == (4.0,)
    assert first.standard_errors == pytest.approx((3**-0.5,))
    assert second.rewards == (6.0,)
    assert [trial.id for trial in second.trials] == [1, 2, 3]
    assert [trial.id for trial in study.pareto_front] == [4]


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


def test_a_decision_without_all_repeats_is_better_than_none() -> None:
    with opened(replicates=3) as study:
        assert best(ran(study, 5.0)).id == 1


def test_a_study_without_repeats_has_the_plain_order() -> None:
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
        assert Overview.read(tmp_path / DATABASE).is_done


def test_of_several_objectives_the_front_is_of_means() -> None:
    objectives = Objectives([LOSS, MetricReward('maximize', 'size')])
    with opened(objective=objectives, replicates=2) as study:
        ran(study, 1.0, 9.0, 4.0, 4.0, 6.0, 6.0)
        # Of means (5, 41), (4, 16) and (6, 36).
        assert [trial.id for trial in study.pareto_front] == [2, 3]
        assert study.leaderboard[0].rewards == (5.0, 41.0)
        added = study.confirm(times=3)
        assert [(trial.lineage.replicate_of_here, trial.lineage.replicate) for trial in added] == [
            (1, 3),
            (3, 3),
        ]


# --- Confirmed afterwards ---


def confirmable(directory: Path | None = None, **fields: Any) -> Study:
    """A done study: trial 3 is the luckiest."""
    fields = {'budget': Budget(6)} | fields
    return ran(opened(directory, **fields), 5.0, 3.0, 2.0, 2.5, 6.0, 4.0)


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


# --- With all else ---


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


def test_a_repeat_that_was_deleted_comes_again(study: Study) -> None:
    study.delete_trial(2)
    ran(study, 2.0)
    assert tried(study)[-1] == (7, 1, 2)
    study.delete_trial(1)
    assert study.leaderboard[1].rewards == (5.0,)
    ran(study, 2.0)
    assert study.trials[-1].lineage.replicate == 1


def test_repeats_stay_together_in_forks(study: Study, tmp_path: Path) -> None:
    trials = json.loads(json.dumps(export(study)))['trials']
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


def test_tables_tell_of_repeats(study: Study) -> None:
    table = study.to_pandas()
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
            (trial_directory(study.directory, trial) / 'checkpoints' / '2').mkdir(parents=True)
            finish(trial, loss)
            checkpoint_retention.remove_unneeded(study)
            held = [trial_directory(study.directory, each) / 'checkpoints' for each in study.trials]
            assert [number for number, path in enumerate(held, 1) if path.exists()] == kept
            assert best(study).id in kept


# --- For people ---


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    def tell(*argv: object) -> str:
        assert studies.main([str(each) for each in argv]) == 0
        return capsys.readouterr().out

    return tell


def test_commands_show_means_and_how_sure_they_are(tmp_path: Path, told: Any) -> None:
    with opened(tmp_path, replicates=3, budget=Budget(6)) as study:
        ran(study, 1.0, 9.0, 8.0, 4.0, 5.0, 3.0)
        assert 'Mean of its replicates (trials 4, 5, 6): 4 ± 0.58' in summary(study, 'x')
    shown = told('show', tmp_path)
    assert 'mean loss' in shown
    assert '0.577' in shown
    found = json.loads(told('best', tmp_path, '--top=2', '--format=json'))['trials']
    assert [each['trial'] for each in found] == [4, 3]
    assert [each['mean loss'] for each in found] == [4.0, 6.0]
    assert [each['num_replicates'] for each in found] == [3, 3]
    (row,) = json.loads(told('list', tmp_path, '--format=json'))
    assert row['best'] == 4.0
    assert 'replicate_of' in told('trials', tmp_path, '--format=csv')


def test_a_command_confirms(tmp_path: Path, told: Any) -> None:
    confirmable(tmp_path).close()
    assert 'mean' not in told('best', tmp_path)
    said = told('confirm', tmp_path, '--top=1', '--replicates=2')
    assert 'trial 7: replicate 2 of trial 3' in said
    assert 'Nothing was added' in told('confirm', tmp_path, '--top=1', '--replicates=2')


def test_progress_prints_replicates(capsys: pytest.CaptureFixture[str]) -> None:
    tune(
        lambda values: float(values.x),
        space={'x': pg.oneof([4, 2])},
        objective='minimize',
        replicates=2,
        callbacks=[Progress()],
    )
    out = capsys.readouterr().out
    assert 'trial 2/4: x=' in out
    assert '(repeat 2)' in out
    assert 'objective=2 ± 0, the mean of 2 trials' in out


def test_a_function_can_ask_which_repeat_it_is() -> None:
    def noisy(values: Any, trial: RunningTrial) -> float:
        return values.x + random.Random(trial.lineage.replicate).random()

    study = tune(
        noisy, space={'x': pg.oneof([0, 5])}, num_trials=6, objective='minimize', replicates=3
    )
    by_decision: dict[int, list[float]] = {}
    for trial in study.trials:
        x = trial.decisions['x']
        by_decision.setdefault(x, []).append(trial.rewards[0] - x)
    assert by_decision[0] == pytest.approx(by_decision[5])
    assert len({*by_decision[0]}) == 3


def test_the_flag() -> None:
    args = _flags().parse_args(['--exp=tests.paxtune.tunables.Rates', '--replicates=3'])
    assert tunable_for(args).search.replicates == 3


# --- Trained ---


def test_all_seeds_of_training_grow_from_repeat_to_repeat() -> None:
    experiment = Rates()
    again = reseeded(experiment, 3)
    assert [str(each) for each in differences(experiment, again)] == ['train.random_seed: 0 → 2']
    assert reseeded(experiment, 1) is experiment
    part = StdlibInput(batch_size=8, sequence_length=4, split='train', is_training=True)
    mixed = MixtureInput(
        batch_size=2,
        is_training=True,
        inputs={'a': part, 'b': part.clone(deep=True, override={'input_random_seed': 7})},
        weights={'a': 1.0, 'b': 1.0},
    )
    experiment.rebind({'train_input': mixed})
    again = reseeded(experiment, 2)
    assert {str(each) for each in differences(experiment, again)} == {
        'train.random_seed: 0 → 1',
        'train_input.input_random_seed: 0 → 1',
        'train_input.inputs.a.input_random_seed: 0 → 1',
        'train_input.inputs.b.input_random_seed: 7 → 8',
    }


@pytest.mark.slow
def test_a_repeat_trains_with_its_own_seed_and_again_to_the_last_bit(
    tmp_path: Path, capsys: Any
) -> None:
    study = tune(Rates(), job_log_dir=tmp_path / 'study', num_trials=2, replicates=2)
    with study:
        first, second = study.trials
        assert first.decisions == second.decisions
        assert first.reward != second.reward
        assert second.materialize().train.random_seed == 1
        assert experiments(study, second)[''].train.random_seed == 1
        written = trial_directory(study.directory, second) / 'experiment.json'
        assert json.loads(written.read_text())['train']['random_seed'] == 1
    capsys.readouterr()
    flags = [f'--study_dir={tmp_path / "study"}', '--trial=2']
    assert train.main([*flags, f'--job_log_dir={tmp_path / "alone"}']) == 0
    assert f'eval/log_pplx={second.reward!r} ' in capsys.readouterr().out


def test_a_repeat_begins_with_the_weights_that_the_first_begins_with() -> None:
    with opened(replicates=2, warm_start='parent', algorithm=RegularizedEvolution(1, 1)) as study:
        ran(study, 1.0, 1.0)
        first, second = ask(study), None
        finish(first, 2.0)
        second = ask(study)
        assert (first.lineage.parent, first.lineage.warm_start) == (1, 1)
        assert (
            second.lineage.parent,
            second.lineage.warm_start,
            second.lineage.replicate_of_here,
        ) == (1, 1, 3)
