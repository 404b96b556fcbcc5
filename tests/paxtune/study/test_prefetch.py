"""Suggestions that are made while trials run."""

import random
import signal
import threading
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.search_space.parameters import to_parameters
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.record import Status, TrialRecord
from paxtune.study.study import Study
from paxtune.study.transitions import WorkerLoss
from paxtune.study.trial import Trial
from tests.paxtune.asking import Digest, finish, space
from tests.paxtune.studies import ask, lose
from tests.paxtune.study.prefetching import REWARD, opened, run, run_to, seen, settle, was_ahead
from tests.processes import command, passed


def infeasible(study: Study, decisions: Any) -> TrialRecord:
    """A trial that ended elsewhere."""
    parameters = to_parameters(study.space.spec, decisions)
    now = study.store.now()
    return TrialRecord(parameters, status=Status.INFEASIBLE, reason='elsewhere', ended=now)


@pytest.fixture(scope='module')
def undisturbed() -> list[Any]:
    with opened() as study:
        return told(run(study))


def told(trials: list[Trial]) -> list[Any]:
    return [(trial.id, trial.decisions, trial.state, seen(trial)) for trial in trials]


# --- What a suggestion is made of ---


def test_the_trial_before_is_pending_even_where_it_has_ended() -> None:
    with opened(budget=Budget(3)) as study:
        trials = run(study)
    assert [seen(trial) for trial in trials] == ['', '1:pending', '1:completed 2:pending']
    assert [was_ahead(trial) for trial in trials] == [False, True, True]
    assert [trial.record.snapshot for trial in trials] == [{}] * 3


def test_others_see_all_trials_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Digest, 'prefetches', False)
    with opened(budget=Budget(3)) as study:
        trials = run(study)
    assert [seen(trial) for trial in trials] == ['', '1:completed', '1:completed 2:completed']
    assert not any(was_ahead(trial) for trial in trials)


def test_each_suggestion_can_be_made_again_from_what_is_recorded(tmp_path: Path) -> None:
    seeds = [{'x': 0.5}, {'x': -0.5}]
    with opened(tmp_path, initial_trials=seeds) as study:
        trials = run(study)
        assert [trial.lineage.origin for trial in trials] == ['seed'] * 2 + ['algorithm'] * 6
    with load_study(tmp_path) as study:
        for trial in trials:
            assert study.suggester.next(trial.id)[0].decisions == trial.by_id


def test_prior_studies_are_always_there() -> None:
    with opened(budget=Budget(2)) as prior:
        run(prior)
        search = Search(REWARD, budget=Budget(2), algorithm=Digest())
        with open_study(None, space(), search=search, priors=[prior]) as study:
            trials = run(study)
    assert seen(trials[1]) == '-1:completed 0:completed 1:pending'


def test_imported_trials_count_as_they_stand() -> None:
    with opened() as study:
        finish(study, ask(study))
        settle(study)  # The second one waits.
        first = study.trial(1).by_id
        study.store.add_trials([infeasible(study, {**first, 'x': 0.3})])
        finish(study, ask(study))
        assert seen(ask(study)) == '1:completed 2:pending 3:infeasible'
    with opened() as study:
        study.store.add_trials([infeasible(study, first)])
        assert seen(ask(study)) == '1:infeasible'


def test_deleted_trials_are_forgotten() -> None:
    with opened() as study:
        for _ in range(3):
            finish(study, ask(study))
        settle(study)
        for number in (4, 3):
            study.delete_trial(number)
        # The third one is not there, so the second one is the last that began.
        assert seen(ask(study)) == '1:completed 2:pending'


def test_added_trials_run_in_order_of_their_numbers() -> None:
    with opened() as study:
        first = ask(study)
        settle(study)
        added = study.add({'x': 0.25})
        finish(study, first)
        trials = []
        for _ in range(3):
            trials.append(ask(study))
            settle(study)
            assert len(study.trials) == max(3, trials[-1].id + 1)  # At most one waits.
            finish(study, trials[-1])
    assert [trial.id for trial in trials] == [2, added.id, 4]
    assert seen(trials[-1]) == '1:completed 2:completed 3:pending'


def test_a_suggestion_that_was_overtaken_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened() as study:
        original = study.suggester.next
        added: list[Trial] = []

        def overtaken(number: int) -> Any:
            made = original(number)
            if threading.current_thread() is not threading.main_thread() and not added:
                added.append(study.add({'x': 0.25}))
            return made

        monkeypatch.setattr(study.suggester, 'next', overtaken)
        first = ask(study)
        settle(study)
        assert [trial.id for trial in study.trials] == [1, 2]
        finish(study, first)
        assert ask(study).lineage.origin == 'added'


# --- Kills ---


def _drop(study: Study) -> None:
    """Leaves the state of a kill before the suggestion is written."""
    settle(study)
    waiting = study.trials[-1]
    if waiting.record.is_prefetched:
        study.store.delete_trial(waiting.id)


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.fast(2)
def test_wherever_it_ends_it_goes_on_as_it_would_have(
    tmp_path: Path, undisturbed: list[Any], seed: int
) -> None:
    rng = random.Random(seed)

    def perhaps_again(study: Study) -> Study:
        chance = rng.random()
        if chance < 0.4:
            _drop(study)
        if chance < 0.6:
            study.close()
            return opened(tmp_path)
        return study

    study = opened(tmp_path)
    while (trial := study.ask()) is not None:
        if (after := perhaps_again(study)) is not study:
            study = after
            trial = ask(study)
            assert trial.resumed
        finish(study, trial)
        study = perhaps_again(study)
    assert told(study.trials) == undisturbed
    study.close()


def killed(directory: Path, where: str) -> None:
    done = command('tests.paxtune.asking', str(directory), kill=where)
    assert done.returncode == -signal.SIGKILL, done.stderr


def ended(directory: Path) -> list[Any]:
    passed(command('tests.paxtune.asking', str(directory)))
    with load_study(directory) as study:
        return told(study.trials)


@pytest.mark.slow
@pytest.mark.sentinel
def test_kills_change_nothing_that_is_suggested(tmp_path: Path) -> None:
    expected = ended(tmp_path / 'undisturbed')
    assert len(expected) == 10
    # In a suggestion, before it is written, and around the start and the end of trials. Each
    # process comes a little further.
    for where in ('suggested:2', 'suggestion:3', 'moved:1', 'moved:4', 'suggested:1', 'moved:9'):
        killed(tmp_path / 'killed', where)
    assert ended(tmp_path / 'killed') == expected


@pytest.mark.parametrize('drops', [False, True])
def test_a_repeat_is_due_whatever_has_become_of_the_trial_before_it(drops: bool) -> None:
    """Results that are unknown when the previous trial begins do not count later."""
    with opened(value=pg.Dict(x=pg.oneof([0.1, 0.9])), budget=Budget(8), replicates=2) as study:
        while (trial := study.ask()) is not None:
            if drops:
                _drop(study)
            finish(study, trial)
        assert [t.lineage.replicate for t in study.trials] == [1, 2, 1, 2]


def test_a_later_attempt_leaves_what_was_noted() -> None:
    with opened() as study:
        trial = ask(study)
        lose(trial, WorkerLoss('it crashed', counts=True), 3)
        again = ask(study)
        assert (again.id, again.attempt, again.record.snapshot) == (1, 2, {})
        settle(study)
        assert [each.state for each in study.trials] == ['ACTIVE', 'REQUESTED']


# --- Studies that end early ---


def test_a_study_that_ends_early_leaves_a_suggestion_for_later(tmp_path: Path) -> None:
    with opened(tmp_path, budget=Budget(8, target_reward=2.0)) as study:
        first = ask(study)
        settle(study)
        finish(study, first)
        assert study.is_done and study.ask() is None
        (_, waiting) = study.trials
        assert waiting.record.is_prefetched and waiting.history == []
    with opened(tmp_path) as study:
        trial = ask(study)
        assert (trial.id, trial.resumed, trial.decisions) == (2, False, waiting.decisions)


def test_a_shorter_study_leaves_it_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as study:
        run_to(study, 3)
        settle(study)
        assert len(study.trials) == 4
    with opened(tmp_path, budget=Budget(3)) as study:
        assert study.done_reason == 'it has all of its 3 trials'
        assert study.ask() is None
    with opened(tmp_path, budget=Budget(4)) as study:
        assert not study.is_done
        assert ask(study).id == 4
