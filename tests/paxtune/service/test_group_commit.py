"""Interrupts of a thread that commits the calls of others."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paxtune.service import schema
from paxtune.service.group_commit import Call, GroupCommit
from paxtune.service.updates import digest
from paxtune.storage.codec import TrialProto
from paxtune.storage.database import DatabaseUnavailableError
from tests.factories.clocked_service import Service
from tests.factories.studies import ask

INTERRUPTS = pytest.mark.parametrize('interrupt', [KeyboardInterrupt, SystemExit])


class Announced:
    """A lock that counts the threads that come to it."""

    def __init__(self) -> None:
        self.lock, self.came = threading.RLock(), threading.Semaphore(0)

    def __enter__(self) -> None:
        self.came.release()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


@INTERRUPTS
@pytest.mark.parametrize('is_made', [False, True])
def test_an_interrupted_commit_ends_all_calls_and_reports_no_write(
    interrupt: type[BaseException], is_made: bool
) -> None:
    interrupts = [interrupt()]

    def transaction(made: Sequence[Call[Any]]) -> None:
        if interrupts and not is_made:
            raise interrupts.pop()
        for each in made:
            each.make()
        if interrupts:
            raise interrupts.pop()

    lock: Any = Announced()
    calls = GroupCommit(lock, transaction)
    with ThreadPoolExecutor(3) as pool:
        with lock.lock:
            made = [pool.submit(calls.make, Call(lambda: 1)) for _ in range(3)]
            assert all(lock.came.acquire(timeout=10) for _ in made)
        failures = [type(each.exception(timeout=10)) for each in made]
    assert sorted(failures, key=str) == sorted(
        [interrupt, DatabaseUnavailableError, DatabaseUnavailableError], key=str
    )
    assert calls.make(Call(lambda: 7)) == 7


@INTERRUPTS
@pytest.mark.parametrize('moment', ['before_commit', 'after_commit'])
def test_a_service_shows_nothing_of_an_interrupted_transaction(
    service: Service, interrupt: type[BaseException], moment: str
) -> None:
    ask(service.study('a'))
    coordinator = service.coordinator
    (before,) = coordinator.changes('', 0).trials
    trial = TrialProto.FromString(before)
    trial.measurements.add(step_count=10).metrics.add(metric_id='loss', value=1.0)

    def send() -> schema.UpdateReply:
        return coordinator.update(1, digest(before), trial.SerializeToString(), 'a', 1, 'one')

    def end() -> None:
        raise interrupt()

    setattr(service.database, moment, end)
    with pytest.raises(interrupt):
        send()
    is_written = moment == 'after_commit'
    (shown,) = coordinator.changes('', 0).trials
    assert len(TrialProto.FromString(shown).measurements) == is_written
    assert send().done
    (shown,) = coordinator.changes('', 0).trials
    assert len(TrialProto.FromString(shown).measurements) == 1
