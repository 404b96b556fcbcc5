"""A service stays fast when many workers use it at the same time."""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from paxtune.service import schema
from paxtune.service.client import Client
from paxtune.storage.codec import TrialProto
from paxtune.storage.database import DatabaseUnavailableError
from paxtune.study.running_trial import RunningTrial
from paxtune.study.transitions import LeaseLostError
from tests.factories.clocked_service import Service
from tests.factories.studies import ask

METRICS = {'loss': 1.0, 'accuracy': 0.5}


@pytest.fixture
def trials(service: Service) -> list[RunningTrial]:
    """A trial of each of four workers."""
    return [ask(service.study(worker)) for worker in 'abcd']


def together(service: Service, calls: Sequence[Callable[[], object]]) -> list[Future[object]]:
    """Makes the coordinator wait until all these calls have come to it."""
    with ThreadPoolExecutor(len(calls)) as pool, service.coordinator._lock:
        made = [pool.submit(call) for call in calls]
        deadline = time.monotonic() + 10
        while len(service.coordinator._updates) < len(calls) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(service.coordinator._updates) == len(calls)
    return made


def reports(trials: Sequence[RunningTrial]) -> list[Callable[[], object]]:
    return [functools.partial(trial.report, 10, METRICS) for trial in trials]


def test_simultaneous_updates_are_one_transaction(
    service: Service, trials: list[RunningTrial], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, written = service.coordinator._store, []
    original = store.write_trials

    def counted(decide: Callable[[], Sequence[TrialProto]]) -> Sequence[TrialProto]:
        written.append(original(decide))
        return written[-1]

    monkeypatch.setattr(store, 'write_trials', counted)
    for report in together(service, reports(trials)):
        report.result()
    assert [len(protos) for protos in written] == [4]
    for trial in service.study('').trials:
        assert [each.step for each in trial.measurements] == [10]


def test_one_that_is_refused_hinders_no_other(service: Service, trials: list[RunningTrial]) -> None:
    service.coordinator.lose('b', 'it is gone', False, True, 3)
    made = together(service, reports(trials))
    with pytest.raises(LeaseLostError):
        made.pop(1).result()
    for report in made:
        report.result()
    assert [len(trial.measurements) for trial in service.study('').trials] == [1, 0, 1, 1]


def test_two_updates_of_one_trial_are_both_done(
    service: Service, trials: list[RunningTrial]
) -> None:
    trials[0].report(10, METRICS)
    trials[0].complete()
    one, other = service.study('').open_trial(1), service.study('').open_trial(1)
    made = together(
        service, [lambda: one.set_metadata({'x': '1'}), lambda: other.set_metadata({'y': '2'})]
    )
    for each in made:
        each.result()
    assert service.study('').trial(1).record.metadata == {'x': '1', 'y': '2'}


def test_all_updates_are_repeated_after_a_database_failure(
    service: Service, trials: list[RunningTrial], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    original = service.coordinator._store.write_trials

    def away_once(decide: Callable[[], Sequence[TrialProto]]) -> Sequence[TrialProto]:
        if not tried:
            tried.append(len(decide()))
            raise DatabaseUnavailableError('it is away')
        return original(decide)

    monkeypatch.setattr(service.coordinator._store, 'write_trials', away_once)
    for report in together(service, reports(trials)):
        report.result()  # Sent again.
    assert tried == [4]
    assert [len(trial.measurements) for trial in service.study('').trials] == [1] * 4


def test_a_waiting_worker_gets_the_suggest_lock_when_it_is_released(service: Service) -> None:
    service.study('c')
    suggest_lock = service.coordinator.acquire_suggest_lock('a').suggest_lock
    ender = threading.Timer(0.02, service.coordinator.release_suggest_lock, [suggest_lock])
    ender.start()
    assert service.coordinator.acquire_suggest_lock('b').suggest_lock
    ender.join()


def test_only_a_few_wait_for_the_suggest_lock(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('paxtune.service.suggest_lock._MAX_WAITING', 0)
    service.study('c')
    assert service.coordinator.acquire_suggest_lock('a').suggest_lock
    assert service.coordinator.acquire_suggest_lock('b').suggest_lock == ''


def test_a_trial_costs_few_calls(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    study = service.study('a')
    called: list[str] = []
    original = Client.call

    def counted(client: Client, request: schema.Request[schema.Reply]) -> schema.Reply:
        called.append(schema.NAMES[type(request)])
        return original(client, request)

    monkeypatch.setattr(Client, 'call', counted)
    trial = ask(study)
    assert called == ['changes', 'claim', 'acquire_suggest_lock', 'changes', 'add']
    called.clear()
    trial.report(10, METRICS)
    trial.complete()
    assert called == ['update', 'update']


def test_changes_come_in_order(service: Service, trials: list[RunningTrial]) -> None:
    coordinator = service.coordinator
    known = coordinator.changes('', 0)
    for trial in (trials[2], trials[0], trials[2]):
        trial.add_event('seen')
    changed = coordinator.changes(known.generation, known.revision)
    assert [TrialProto.FromString(content).id for content in changed.trials] == ['1', '3']
