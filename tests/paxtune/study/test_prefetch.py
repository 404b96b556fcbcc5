"""Suggestions that are made while trials run."""

import contextlib
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import RandomSearch
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward
from paxtune.search_space.parameters import to_parameters
from paxtune.service.client import Client
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.remote_store import RemoteStore
from paxtune.service.server import Server
from paxtune.storage.database import Database
from paxtune.storage.open_study import load_study, open_study
from paxtune.storage.vizier_store import VizierStore
from paxtune.study import stop_requests
from paxtune.study.record import Status, TrialRecord
from paxtune.study.study import Study
from paxtune.study.suggester import SuggestionError
from paxtune.study.transitions import WorkerLoss
from paxtune.study.trial import Trial
from tests.paxtune.asking import Digest, finish, space
from tests.paxtune.service.conftest import until
from tests.paxtune.studies import ask, rewrite
from tests.processes import command, passed

REWARD = MetricReward('minimize', 'y')


def opened(
    directory: Path | None = None, value: Any = None, store: Any = None, **fields: Any
) -> Study:
    search = Search(REWARD, **({'budget': Budget(8), 'algorithm': Digest()} | fields))
    return open_study(directory, value or space(), search=search, store=store)


def settle(study: Study) -> None:
    """Waits until what is made ahead is there."""
    study._queue._prefetcher.wait()


def run(study: Study) -> list[Trial]:
    while (trial := study.ask()) is not None:
        finish(study, trial)
    return study.trials


def infeasible(study: Study, decisions: Any) -> TrialRecord:
    """A trial that ended elsewhere."""
    parameters = to_parameters(study.space.spec, decisions)
    now = study.store.now()
    return TrialRecord(parameters, status=Status.INFEASIBLE, reason='elsewhere', ended=now)


def seen(trial: Trial) -> str:
    return trial.record.memo['seen']


def was_ahead(trial: Trial) -> bool:
    return trial.record.memo['by'].startswith('suggestions')


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
    assert [trial.snapshot for trial in trials] == [{}] * 3


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
        study.add_ended([infeasible(study, {**first, 'x': 0.3})])
        finish(study, ask(study))
        assert seen(ask(study)) == '1:completed 2:pending 3:infeasible'
    with opened() as study:
        study.add_ended([infeasible(study, first)])
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
        trial.lose(WorkerLoss('it crashed', counts=True), 3)
        again = ask(study)
        assert (again.id, again.attempt, again.snapshot) == (1, 2, {})
        settle(study)
        assert [each.state for each in study.trials] == ['ACTIVE', 'REQUESTED']


# --- The thread ---


def test_a_suggestion_in_progress_is_awaited() -> None:
    with opened(budget=Budget(4), algorithm=Digest(seconds=0.1)) as study:
        numbers = []
        original = study.suggester.next
        study.suggester.next = lambda number: (
            numbers.append(number) or original(number)  # type: ignore[func-returns-value]
        )
        run(study)
    assert numbers == [1, 2, 3, 4]


def test_the_next_suggestion_is_there_before_the_trial_has_ended() -> None:
    with opened(budget=Budget(4), algorithm=Digest(seconds=0.05)) as study:
        for number in range(1, 4):
            trial = ask(study)
            assert trial.id == number
            until(lambda: study.trials[-1].record.is_prefetched, 10)
            finish(study, trial)
        assert not study.is_done


def test_an_error_of_the_algorithm_is_raised_at_the_next_request() -> None:
    with opened(algorithm=Digest(breaks_at=3)) as study:
        finish(study, ask(study))
        trial = ask(study)
        settle_quietly(study)
        finish(study, trial)
        for _ in range(2):
            with pytest.raises(SuggestionError, match='this algorithm breaks'):
                study.ask()
        assert len(study.trials) == 2


def settle_quietly(study: Study) -> None:
    until(
        lambda: study._queue._prefetcher._last is None or study._queue._prefetcher._last.done(), 10
    )


def test_a_done_study_does_not_raise_what_it_did_not_need() -> None:
    with opened(algorithm=Digest(breaks_at=2), budget=Budget(8, target_reward=10.0)) as study:
        trial = ask(study)
        settle_quietly(study)
        study.tell(trial, {'y': 1.0})
        assert study.ask() is None


def test_a_small_space_is_exhausted() -> None:
    with opened(value=pg.Dict(x=pg.oneof([0.1, 0.2, 0.3])), budget=Budget(9)) as study:
        assert sorted(trial.decisions['x'] for trial in run(study)) == [0.1, 0.2, 0.3]
        assert study.exhausted and study.is_done


def test_nothing_is_asked_ahead_of_a_pause_or_beyond_the_last_trial() -> None:
    with opened(budget=Budget(2)) as study:
        stop_requests.request_pause(study.store)
        first = ask(study)
        settle(study)
        assert len(study.trials) == 1
        stop_requests.resume(study.store)
        finish(study, first)
        ask(study)
        settle(study)
        assert len(study.trials) == 2


def test_a_study_in_another_algorithm_has_no_thread() -> None:
    before = threading.active_count()
    with opened(algorithm=RandomSearch()) as study:
        run_to(study, 2)
        assert threading.active_count() == before


def run_to(study: Study, count: int) -> None:
    for _ in range(count):
        finish(study, ask(study))


def test_closing_waits_for_what_is_being_made(tmp_path: Path) -> None:
    before = threading.active_count()
    with opened(tmp_path, algorithm=Digest(seconds=0.2)) as study:
        ask(study)
    assert threading.active_count() == before
    with load_study(tmp_path) as study:
        assert [trial.state for trial in study.trials] == ['ACTIVE', 'REQUESTED']


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


# --- Workers ---


class Service:
    """A study in a service, and its workers."""

    def __init__(self, **fields: Any) -> None:
        self._database, self._fields = Database(None), fields
        self.coordinator = StudyCoordinator(VizierStore(self._database), lease_seconds=1000.0)
        self._server = Server(lambda study: self.coordinator)
        self._server.start()
        self._studies: list[Study] = []

    def study(self, worker: str) -> Study:
        client = Client(f'127.0.0.1:{self._server.port}', 'study', patience=5.0)
        self._studies.append(
            opened(Path('anywhere'), store=RemoteStore(client, worker), **self._fields)
        )
        return self._studies[-1]

    def close(self) -> None:
        for study in self._studies:
            study.close()
        self._server.stop(0)
        self._database.close()


@pytest.fixture
def anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures('anywhere')
def test_a_service_notes_what_was_open_when_a_trial_began() -> None:
    with contextlib.closing(Service()) as made:
        a, b = made.study('a'), made.study('b')
        one = ask(a)
        settle(a)
        two = ask(b)
        settle(b)
        finish(a, one)
        three = ask(a)
        settle(a)
        finish(a, three)
        four = ask(a)
        assert [trial.id for trial in (one, two, three, four)] == [1, 2, 3, 4]
        notes = [sorted(trial.snapshot or ()) for trial in (one, two, three, four)]
        assert notes == [[], [1], [2], [2]]
        assert seen(three) == '1:pending 2:pending'
        assert seen(four) == '1:completed 2:pending 3:pending'
        # Only the service says so.
        rewrite(a, 4, snapshot={1: None, 3: None})
        assert a.trial(4).snapshot == {2: None}


@pytest.mark.usefixtures('anywhere')
@pytest.mark.slow
def test_workers_do_not_wait_for_suggestions() -> None:
    """Trials last longer than suggestions, and end one after the other."""
    count, workers = 12, 3
    with contextlib.closing(Service(budget=Budget(count), algorithm=Digest(seconds=0.05))) as made:
        ending = threading.Lock()

        def work(study: Study) -> None:
            trial = study.ask()
            while trial is not None:
                with ending:
                    until(
                        lambda: len(study.trials) == count or study.trials[-1].record.is_prefetched,
                        30,
                    )
                    finish(study, trial)
                    trial = study.ask()

        with ThreadPoolExecutor(workers) as threads:
            studies = [made.study(f'worker{i}') for i in range(workers)]
            list(threads.map(work, studies))
        trials = studies[0].trials
    assert [trial.id for trial in trials] == list(range(1, count + 1))
    assert all(was_ahead(trial) for trial in trials[workers:])
    assert any(trial.snapshot for trial in trials)
    # All was made of what is recorded.
    for trial in trials[1:]:
        states = {id_: state for id_, state in (e.split(':') for e in seen(trial).split())}
        then = trials[trial.id - 2].snapshot
        assert then is not None
        pending = {int(id_) for id_, state in states.items() if state == 'pending'}
        assert pending == {*then, trial.id - 1}
