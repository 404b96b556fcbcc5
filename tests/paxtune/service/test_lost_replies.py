"""Lost and late replies, commits in doubt and silent services: each call has its effect once."""

import dataclasses
import json
import threading
from typing import Any

import pytest

from paxtune.config.budget import Budget
from paxtune.config.faults import Faults
from paxtune.service.client import Client
from paxtune.service.remote_store import RemoteStore
from paxtune.service.schema import RequestRejectedError
from paxtune.service.updates import digest
from paxtune.storage.codec import TrialProto
from paxtune.storage.open_study import open_study
from paxtune.study import trial_import
from paxtune.study.plan import SearchPlan
from paxtune.study.record import Status
from paxtune.study.study import Study
from paxtune.study.transitions import DetachedError, LeaseLostError, TurnLostError
from tests.factories.clocked_service import Service, heartbeat
from tests.factories.studies import ask, finish, run
from tests.factories.toys import toy

METRICS = {'loss': 1.0, 'accuracy': 0.5}


def events(study: Study, number: int = 1) -> list[str]:
    return [event['event'] for event in study.trial(number).history]


def test_a_repeated_addition_is_refused_when_another_worker_owns_the_trial(
    service: Service,
) -> None:
    late, other = service.study('a'), service.study('b')

    def taken() -> None:
        service.now += 11
        assert ask(other).id == 1

    service.lost['add'] = taken
    with pytest.raises(LeaseLostError, match='trial 1 is held by b, attempt 2'):
        ask(late)


def test_a_worker_whose_lease_ended_before_a_repeated_write_writes_no_more(
    service: Service,
) -> None:
    late = service.study('a')
    trial = ask(late)

    def expired() -> None:
        service.now += 11
        assert service.coordinator.revoked(['a']).workers == ['a']

    service.lost['update'] = expired
    for write in (lambda: trial.report(10, METRICS), lambda: trial.set_time(9.0, 1)):
        with pytest.raises(LeaseLostError, match='no worker holds trial 1'):
            write()


@pytest.mark.parametrize('restarts', [False, True])
def test_a_promotion_is_applied_once(service: Service, restarts: bool) -> None:
    first, other = service.study('a'), service.study('b')
    ask(first).pause(10, 'at its milestone')

    def paused_again() -> None:
        trial = ask(other)
        assert trial.id == 1
        trial.report(20, METRICS)
        trial.pause(20, 'at its next milestone')
        if restarts:
            service.restart()

    service.lost['update'] = paused_again
    first.open_trial(1).promote('it is among the best')
    assert first.trial(1).status is Status.PAUSED
    assert events(first) == ['claimed', 'paused', 'promoted', 'claimed', 'paused']


def test_an_addition_is_made_once_though_the_trial_has_changed(service: Service) -> None:
    people, worker = service.study(''), service.study('a')

    def begun() -> None:
        ask(worker).report(10, METRICS)
        service.restart()

    service.lost['add'] = begun
    assert people.add({}).id == 1
    assert len(people.trials) == 1


def test_an_addition_for_an_older_study_is_refused(service: Service) -> None:
    first, second = service.study(''), service.study('')
    record = first.add({}).view.record
    with pytest.raises(TurnLostError, match='trials were added in the meantime'):
        second.store.add_trials([dataclasses.replace(record, id=0)], after=0)
    assert len(first.trials) == 1


def test_an_addition_in_doubt_is_made_once(service: Service) -> None:
    people = service.study('')
    service.database.after_commit = lambda: None
    assert people.add({}).id == 1
    assert len(people.trials) == 1


def test_a_trial_whose_end_was_in_doubt_is_not_handed_out_again(service: Service) -> None:
    study = service.study('a', faults=Faults(max_attempts=1))
    trial = ask(study)
    trial.report(10, METRICS)
    # The worker dies before it can repeat the call.
    service.database.after_commit = study.store.close
    with pytest.raises(DetachedError):
        trial.complete()
    service.now += 11
    other = service.study('b', faults=Faults(max_attempts=1))
    assert ask(other).id == 2
    assert (other.trial(1).state, other.trial(1).reward) == ('COMPLETED', 1.0)
    assert service.coordinator.num_leases == 1


def test_an_end_in_doubt_is_known_before_leases_expire(service: Service) -> None:
    study = service.study('a')
    trial = ask(study)
    trial.report(10, METRICS)
    service.database.after_commit = study.store.close
    with pytest.raises(DetachedError):
        trial.complete()
    service.now += 11
    # Its lease would be over, and it has ended.
    assert service.coordinator.revoked(['a']).workers == []
    assert service.coordinator.num_leases == 0


def test_a_claim_in_doubt_leases_the_trial(service: Service) -> None:
    service.study('').add({})
    first, other = service.study('a'), service.study('b')
    service.database.after_commit = first.store.close
    with pytest.raises(DetachedError):
        ask(first)
    assert ask(other).id == 2
    service.now += 11
    assert service.coordinator.revoked(['a']).workers == ['a']


def test_a_claim_that_was_not_committed_leases_nothing(service: Service) -> None:
    service.study('').add({})
    worker = service.study('a')
    service.database.before_commit = worker.store.close
    with pytest.raises(DetachedError):
        ask(worker)
    assert service.coordinator.claim('b', None).trial is not None
    assert service.coordinator.num_leases == 1


def test_a_lease_that_was_not_committed_does_not_expire(service: Service) -> None:
    people, worker = service.study(''), service.study('a')
    people.add({})
    service.database.before_commit = worker.store.close
    with pytest.raises(DetachedError):
        ask(worker)
    service.now += 11
    assert service.coordinator.revoked(['a']).workers == []
    assert people.trial(1).state == 'REQUESTED'


def test_an_update_of_another_trial_is_refused(service: Service) -> None:
    study = service.study('')
    study.add({})
    study.add({})
    first, second = service.coordinator.changes('', 0).trials
    call: dict[str, Any] = {'id': 1, 'expected': digest(first), 'worker': '', 'attempt': 0}
    same = TrialProto.FromString(first)
    for id_ in ('2', '', 'x', '9' * 5000, '0' * 20 + '2'):
        same.id = id_
        with pytest.raises(RequestRejectedError) as refusal:
            service.coordinator.update(**call, trial=same.SerializeToString(), request_id=id_[:9])
        assert refusal.value.code == 'invalid'
    same.id = '1'
    same.start_time.seconds = 2**60
    with pytest.raises(RequestRejectedError) as refusal:
        service.coordinator.update(**call, trial=same.SerializeToString(), request_id='time')
    assert refusal.value.code == 'invalid'
    assert service.coordinator.changes('', 0).trials == [first, second]


def test_a_heartbeat_waits_for_no_other_call(service: Service) -> None:
    study = service.study('a')
    trial = ask(study)
    stuck, release = threading.Event(), threading.Event()

    def slow() -> None:
        stuck.set()
        release.wait(60)

    service.before['update'] = slow
    report = threading.Thread(target=trial.report, args=(10, METRICS))
    beats: list[str | None] = []
    beat = threading.Thread(target=lambda: beats.append(heartbeat(study)))
    report.start()
    assert stuck.wait(60)
    beat.start()
    beat.join(20)
    release.set()
    was_alone = beats == [None]
    beat.join()
    report.join()
    assert was_alone
    assert [each.step for each in study.trial(1).measurements] == [10]


def test_the_deadline_of_a_heartbeat_is_a_quarter_of_the_lease(service: Service) -> None:
    timeouts: list[float] = []

    class Recording(Client):
        def another(self, timeout: float) -> Client:
            timeouts.append(timeout)
            return super().another(timeout)

    store = RemoteStore(Recording(service.endpoint, 'toys', patience=5.0), 'a')
    study = service.opened(store)
    ask(study)
    assert heartbeat(study) is None and heartbeat(study) is None
    assert store.lease_seconds == 10.0 and timeouts == [2.5]


def test_a_service_that_stood_still_takes_no_trials_away(service: Service) -> None:
    study, other = service.study('a'), service.study('b')
    ask(study)
    service.coordinator.tick()
    service.now += 100  # It was stopped.
    assert ask(other).id == 2
    assert heartbeat(study) is None
    for _ in range(11):  # It runs, without a call.
        service.now += 1
        service.coordinator.tick()
    assert service.coordinator.revoked(['a', 'b']).workers == ['a', 'b']


def test_a_fork_of_a_large_study_is_one_transaction(service: Service) -> None:
    with open_study(None, toy()) as source:
        run(source)
        study = service.study('a')
        # The machine dies after the first message.
        service.lost['add'] = study.store.close
        with pytest.raises(DetachedError):
            trial_import.fork(source, study)
    assert len(service.study('').trials) == 5


def test_a_trial_is_finished_though_every_reply_is_lost_once(service: Service) -> None:
    study = service.study('a')
    for method in ('claim', 'acquire_suggest_lock', 'add', 'update', 'changes'):
        service.lost[method] = lambda: None
    finish(ask(study))
    assert [each.step for each in study.trial(1).measurements] == [10, 20]
    assert events(study) == ['claimed', 'ended']


def test_a_client_cannot_change_what_is_searched(service: Service) -> None:
    study = service.study('a')
    other = SearchPlan.compile(toy(rate=0.5)).record(False, [])
    with pytest.raises(RequestRejectedError, match='only its budgets'):
        study.store.update_study(lambda stored: dataclasses.replace(stored, value=other.value))
    longer = service.study('b', budget=Budget(9))
    assert longer.num_trials == 9
    assert '9' in json.dumps(json.loads(study.record.value)['search']['budget'])


def test_a_late_deletion_leaves_the_next_trial_of_that_number(service: Service) -> None:
    people = service.study('')
    people.add({})
    service.lost['delete'] = lambda: service.study('').add({})
    people.store.delete_trial(1)
    assert [trial.id for trial in people.trials] == [1]
    with pytest.raises(KeyError):
        people.store.delete_trial(2)
