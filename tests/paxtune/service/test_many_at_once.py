"""A service stays fast when many workers use it at the same time."""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from paxtune.service.change_feed import ChangeFeed
from paxtune.service.suggest_lock import SuggestLock
from paxtune.storage.codec import TrialProto
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.record import TrialRecord
from paxtune.study.running_trial import RunningTrial
from paxtune.study.transitions import LeaseLostError
from tests.factories.clocked_service import Service
from tests.factories.studies import ask
from tests.paxtune.service.conftest import until

METRICS = {'loss': 1.0, 'accuracy': 0.5}


@pytest.fixture
def trials(service: Service) -> list[RunningTrial]:
    """A trial of each of four workers."""
    return [ask(service.study(worker)) for worker in 'abcd']


def together(service: Service, calls: Sequence[Callable[[], Any]]) -> list[Future[Any]]:
    """Holds the database and the coordinator until all these calls have come to the service."""
    before = len(service.called)
    with ThreadPoolExecutor(len(calls) + 1) as pool, service.database.reading():
        pool.submit(service.coordinator.changes, '', 0)
        time.sleep(0.1)  # It has the lock of the coordinator, and waits for the database.
        made = [pool.submit(call) for call in calls]
        until(lambda: len(service.called) >= before + len(calls))
        time.sleep(0.1)
    return made


def reports(trials: Sequence[RunningTrial]) -> list[Callable[[], object]]:
    return [functools.partial(trial.report, 10, METRICS) for trial in trials]


def test_simultaneous_updates_share_a_transaction(
    service: Service, trials: list[RunningTrial]
) -> None:
    before = service.database.commits
    for report in together(service, reports(trials)):
        report.result()
    assert 1 <= service.database.commits - before <= 2  # One call may come too late.
    for trial in service.study('').trials:
        assert [each.step for each in trial.measurements] == [10]


def claims(service: Service) -> list[Callable[[], Any]]:
    """Claims of four workers, for which four trials wait."""
    for _ in range(4):
        service.study('').add({})
    return [functools.partial(service.study(worker).store.claim, []) for worker in 'abcd']


def test_simultaneous_claims_share_a_transaction_and_get_different_trials(
    service: Service,
) -> None:
    made = claims(service)
    before = service.database.commits
    found = [call.result() for call in together(service, made)]
    assert 1 <= service.database.commits - before <= 2  # One call may come too late.
    assert sorted(each.id for each in found) == [1, 2, 3, 4]
    assert sorted(each.record.holder for each in service.study('').trials) == [*'abcd']


def test_claims_whose_transaction_fails_are_made_again(service: Service) -> None:
    made = claims(service)
    service.database.before_commit = lambda: None
    found = [call.result() for call in together(service, made)]
    assert sorted(each.id for each in found) == [1, 2, 3, 4]
    assert service.called.count('claim') >= 4 + 2


def test_claims_whose_commit_is_in_doubt_are_made_once(service: Service) -> None:
    made = claims(service)
    service.database.after_commit = lambda: None
    found = [call.result() for call in together(service, made)]
    assert sorted(each.id for each in found) == [1, 2, 3, 4]
    assert [len(each.record.history) for each in service.study('').trials] == [1] * 4


def test_an_addition_shares_the_transaction_of_a_claim(service: Service) -> None:
    (claim, *_), user = claims(service), service.study('')
    before = service.database.commits
    added = TrialRecord(user.trials[0].record.parameters)
    for call in together(service, [lambda: user.store.add_trials([added]), claim]):
        call.result()
    assert service.database.commits - before <= 2
    assert len(user.trials) == 5


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
    service: Service, trials: list[RunningTrial]
) -> None:
    service.database.before_commit = lambda: None
    for report in together(service, reports(trials)):
        report.result()  # Sent again.
    assert service.called.count('update') >= 4 + 2
    assert [len(trial.measurements) for trial in service.study('').trials] == [1] * 4


def test_a_waiting_worker_gets_the_suggest_lock_when_it_is_released(service: Service) -> None:
    service.study('c')
    suggest_lock = service.coordinator.acquire_suggest_lock('a').suggest_lock
    ender = threading.Timer(0.02, service.coordinator.release_suggest_lock, [suggest_lock])
    ender.start()
    assert service.coordinator.acquire_suggest_lock('b').suggest_lock
    ender.join()


def test_only_a_few_wait_for_the_suggest_lock() -> None:
    with (lock := threading.RLock()):
        suggest_lock = SuggestLock(lock, time.monotonic, max_waiting=0)
        assert suggest_lock.acquire('a')
        assert suggest_lock.acquire('b') == ''


def test_a_trial_costs_few_calls(service: Service) -> None:
    study = service.study('a')
    service.called.clear()
    trial = ask(study)
    assert service.called == ['changes', 'claim', 'acquire_suggest_lock', 'changes', 'add']
    service.called.clear()
    trial.report(10, METRICS)
    trial.complete()
    assert service.called == ['update', 'update']


def test_changes_come_in_order(service: Service, trials: list[RunningTrial]) -> None:
    coordinator = service.coordinator
    known = coordinator.changes('', 0)
    for trial in (trials[2], trials[0], trials[2]):
        trial.add_event('seen')
    changed = coordinator.changes(known.generation, known.revision)
    assert [TrialProto.FromString(content).id for content in changed.trials] == ['1', '3']


def test_rules_that_another_thread_drops_at_once_are_still_found(service: Service) -> None:
    class Dropped(ChangeFeed):
        _rules = property(lambda self: None, lambda self, rules: None)

    service.study('a')
    assert Dropped(VizierStore(service.database, 'toys')).rules.num_rewards == 1
