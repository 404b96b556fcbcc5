"""Suggestions: made when a worker asks for them, from everything that is recorded then."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from paxtune.algorithms import Suggestion, SuggestionContext
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.search_space.parameters import to_parameters
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.record import Status, TrialRecord
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from tests.factories.digest_studies import REWARD, Digest, finish, opened, space
from tests.factories.studies import ask
from tests.servers.processes import command, passed


def run(study: Study) -> list[Trial]:
    while (trial := study.ask()) is not None:
        finish(study, trial)
    return study.trials


def seen(trial: Trial) -> str:
    return trial.record.memo['seen']


def told(trials: list[Trial]) -> list[Any]:
    return [(trial.id, trial.decisions, trial.state, seen(trial)) for trial in trials]


def infeasible(study: Study, decisions: Any) -> TrialRecord:
    """A trial that ended elsewhere."""
    parameters = to_parameters(study.space.spec, decisions)
    now = study.store.now()
    return TrialRecord(parameters, status=Status.INFEASIBLE, reason='elsewhere', ended=now)


@pytest.fixture(scope='module')
def undisturbed() -> list[Any]:
    with opened() as study:
        return told(run(study))


# --- What a suggestion is made of ---


def test_a_suggestion_uses_the_results_of_all_earlier_trials() -> None:
    with opened(budget=Budget(3)) as study:
        trials = run(study)
    assert [seen(trial) for trial in trials] == ['', '1:completed', '1:completed 2:completed']


def test_running_trials_are_pending_until_they_end() -> None:
    with opened() as study:
        first, second = ask(study), ask(study)
        finish(study, second)
        third = ask(study)
        finish(study, first)
        found = [seen(trial.view) for trial in (first, second, third, ask(study))]
    assert found == ['', '1:pending', '1:pending 2:completed', '1:completed 2:completed 3:pending']


def test_a_paused_trial_counts_once_it_has_a_reward() -> None:
    with opened() as study:
        paused, unmeasured = ask(study), ask(study)
        paused.report(1, {'y': 0.5})
        paused.pause(1, 'the rung')
        unmeasured.pause(1, 'the rung')
        assert seen(ask(study).view) == '1:completed 2:pending'


def test_each_suggestion_can_be_made_again_from_what_is_recorded(tmp_path: Path) -> None:
    seeds = [{'x': 0.5}, {'x': -0.5}]
    with opened(tmp_path, initial_trials=seeds) as study:
        trials = run(study)
        assert [trial.lineage.origin for trial in trials] == ['initial_trials'] * 2 + [
            'algorithm'
        ] * 6
    with load_study(tmp_path) as study:
        for trial in trials:
            assert study.suggester.next(trial.id)[0].decisions == trial.by_id


def test_prior_studies_are_always_there() -> None:
    with opened(budget=Budget(2)) as prior:
        run(prior)
        search = Search(REWARD, budget=Budget(2), algorithm=Digest())
        with open_study(None, space(), search=search, priors=[prior]) as study:
            trials = run(study)
    assert seen(trials[1]) == '-1:completed 0:completed 1:completed'


def test_imported_trials_count_as_they_stand() -> None:
    with opened() as study:
        finish(study, ask(study))
        first = study.trial(1).by_id
        study.store.add_trials([infeasible(study, {**first, 'x': 0.3})])
        assert seen(ask(study).view) == '1:completed 2:infeasible'
    with opened() as study:
        study.store.add_trials([infeasible(study, first)])
        assert seen(ask(study).view) == '1:infeasible'


def test_deleted_trials_are_forgotten() -> None:
    with opened() as study:
        for _ in range(4):
            finish(study, ask(study))
        for number in (4, 3):
            study.delete_trial(number)
        trial = ask(study)
        assert (trial.id, seen(trial.view)) == (3, '1:completed 2:completed')


def test_added_trials_run_first_and_count() -> None:
    with opened() as study:
        first = ask(study)
        added = study.add({'x': 0.25})
        finish(study, first)
        assert ask(study).id == added.id
        assert seen(ask(study).view) == '1:completed 2:pending'


def test_a_trial_that_is_added_during_a_suggestion_comes_first() -> None:
    added: list[Trial] = []

    class Overtaken(Digest):
        def suggest(self, context: SuggestionContext) -> Suggestion:
            if not added:
                added.append(study.add({'x': 0.25}).view)
            return super().suggest(context)

    with opened(algorithm=Overtaken()) as study:
        assert ask(study).lineage.origin == 'added'
        assert seen(ask(study).view) == '1:pending'


@pytest.mark.parametrize('budget', [Budget(8, target_reward=2.0), Budget(1)])
def test_a_study_that_is_done_has_no_trial_that_waits(tmp_path: Path, budget: Budget) -> None:
    with opened(tmp_path, budget=budget) as study:
        assert [trial.state for trial in run(study)] == ['COMPLETED']
    with opened(tmp_path, budget=Budget(2)) as study:
        trial = ask(study)
        assert (trial.id, trial.resumed, seen(trial.view)) == (2, False, '1:completed')


# --- Kills ---


@pytest.mark.parametrize('seed', range(3))
def test_wherever_it_ends_it_goes_on_as_it_would_have(
    tmp_path: Path, undisturbed: list[Any], seed: int
) -> None:
    rng = random.Random(seed)
    study = opened(tmp_path)
    while (trial := study.ask()) is not None:
        if rng.random() < 0.4:
            study.close()
            study = opened(tmp_path)
            trial = ask(study)
            assert trial.resumed
        finish(study, trial)
        if rng.random() < 0.4:
            study.close()
            study = opened(tmp_path)
    assert told(study.trials) == undisturbed
    study.close()


def killed(directory: Path, where: str) -> None:
    done = command('tests.factories.digest_studies', str(directory), kill=where)
    assert done.returncode == -signal.SIGKILL, done.stderr


def ended(directory: Path) -> list[Any]:
    passed(command('tests.factories.digest_studies', str(directory)))
    with load_study(directory) as study:
        return told(study.trials)


@pytest.mark.slow
@pytest.mark.sentinel
def test_kills_change_nothing_that_is_suggested(tmp_path: Path) -> None:
    expected = ended(tmp_path / 'undisturbed')
    assert len(expected) == 10
    # In a suggestion, before it is written, and around the start and the end of trials. Each
    # process comes a little further.
    for where in ('suggested:2', 'suggestion:3', 'moved:4'):
        killed(tmp_path / 'killed', where)
    assert ended(tmp_path / 'killed') == expected
