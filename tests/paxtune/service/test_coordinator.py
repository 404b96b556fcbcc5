"""Leases, attempts, the suggest lock and fencing: workers of one study, over a real server."""

import contextlib
import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest

from paxtune.config.faults import Faults
from paxtune.reports import ask_tell
from paxtune.search_space.parameters import to_parameters
from paxtune.service.remote_store import RemoteStore
from paxtune.service.schema import RequestRejectedError, WorkerOptions
from paxtune.service.updates import digest
from paxtune.storage.codec import TrialProto, encode_trial, parse_trial
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import open_study
from paxtune.study import stop_requests, transitions
from paxtune.study.record import Failures, Status, TrialRecord
from paxtune.study.study import Study
from paxtune.study.transitions import MAX_LOSSES, LeaseLostError, WorkerLoss
from tests.factories.clocked_service import Service, heartbeat
from tests.factories.digest_studies import Digest
from tests.factories.studies import ask, decisions, finish, lose, run
from tests.factories.toys import toy
from trainer.symbolic.errors import UserError


def test_one_worker_gets_the_trials_of_a_local_study(service: Service) -> None:
    with open_study(None, toy()) as local:
        run(local)
        assert decisions(local) == [trial.decisions for trial in run(service.study('a'))]


@pytest.mark.pax('Roles and tuner')
def test_workers_get_different_trials_and_each_its_own_again(service: Service) -> None:
    first, second = service.study('a'), service.study('b')
    trials = [ask(first), ask(second)]
    assert [trial.id for trial in trials] == [1, 2]
    assert [ask(first).id, ask(second).id] == [1, 2]
    assert [trial.record.holder for trial in first.trials] == ['a', 'b']
    for trial in trials:
        finish(trial)
    assert [trial.state for trial in second.trials] == ['COMPLETED', 'COMPLETED']
    assert ask(second).id == 3


def test_all_workers_together_do_what_the_study_wants(service: Service) -> None:
    studies = [service.study(name) for name in 'abc']
    while not studies[0].is_done:
        held = [trial for study in studies if (trial := study.ask()) is not None]
        for trial in held:
            finish(trial)
    assert [trial.id for trial in studies[0].trials] == [1, 2, 3, 4, 5]
    assert len({str(each) for each in decisions(studies[0])}) == 5


def test_a_suggestion_uses_all_results_of_other_workers(service: Service) -> None:
    a, b = (service.study(name, algorithm=Digest()) for name in 'ab')
    one, two = ask(a), ask(b)
    finish(one)
    three = ask(a)
    finish(two)
    found = [trial.view.record.memo['seen'] for trial in (one, two, three, ask(b))]
    assert found == ['', '1:pending', '1:completed 2:pending', '1:completed 2:completed 3:pending']


@pytest.mark.pax('Many workers on')
def test_a_worker_without_heartbeat_loses_its_trial(service: Service) -> None:
    lost, other = service.study('a'), service.study('b')
    zombie = ask(lost)
    zombie.report(10, {'loss': 1.0, 'accuracy': 0.5})
    service.now = 9.0
    assert heartbeat(lost) is None
    service.now = 18.0
    assert other.trial(1).record.holder == 'a'  # Its last heartbeat was nine seconds ago.
    service.now = 19.0
    trial = ask(other)
    assert (trial.id, trial.view.attempt, trial.resumed) == (1, 2, True)
    assert [each.step for each in trial.view.measurements] == [10]
    before = other.trial(1).history
    for late in (
        lambda: zombie.report(20, {'loss': 0.0, 'accuracy': 1.0}),
        lambda: zombie.complete(),
        lambda: zombie.fail('late'),
        lambda: zombie.set_time(9.0, 1),
    ):
        with pytest.raises(LeaseLostError, match='trial 1 is held by b, attempt 2'):
            late()
    assert heartbeat(lost) == 'trial 1 is held by b, attempt 2'
    assert other.trial(1).history == before
    finish(trial)
    with pytest.raises(LeaseLostError, match='no worker holds trial 1'):
        zombie.set_time(9.0, 1)
    events = [event['event'] for event in other.trial(1).history]
    assert events == ['claimed', 'lost', 'claimed', 'ended']
    assert service.coordinator.revoked(['a', 'b']).workers == ['a']


def test_a_worker_without_progress_loses_its_trial_and_that_counts(service: Service) -> None:
    study = service.study('a', faults=Faults(max_attempts=2))
    assert isinstance(study.store, RemoteStore)
    study.store.options = WorkerOptions(trial_timeout=25.0, max_attempts=2)
    ask(study)
    for progress in (1, 2, 3, 4):
        service.now += 8
        assert heartbeat(study, progress) is None
    for _ in range(3):
        service.now += 8
        assert heartbeat(study, 4) is None
    service.now += 8
    assert heartbeat(study, 4) == 'no worker holds trial 1'
    assert (study.trial(1).state, study.trial(1).attempt) == ('ACTIVE', 2)
    other = service.study('b')
    assert isinstance(other.store, RemoteStore)
    other.store.options = study.store.options
    assert ask(other).id == 1
    for _ in range(4):
        service.now += 8
        heartbeat(other)
    trial = other.trial(1)
    assert (trial.state, trial.is_failed) == ('INFEASIBLE', True)
    assert trial.reason == 'it made no step for 25 s (attempt 2 of 2)'
    assert ask(other).id == 2


def test_a_lease_lasts_from_its_last_renewal_and_no_longer(service: Service) -> None:
    study = service.study('a')
    ask(study)
    for _ in range(50):  # Often: each renewal begins the lease anew, and adds nothing to it.
        service.now += 1
        assert heartbeat(study) is None
    service.now += 9.9
    assert service.coordinator.revoked(['a']).workers == []
    service.now += 0.2
    assert service.coordinator.revoked(['a']).workers == ['a']


def test_a_lease_that_has_expired_is_not_renewed(service: Service) -> None:
    study = service.study('a')
    ask(study)
    service.now += 10.1  # No call came meanwhile.
    assert heartbeat(study) == 'no worker holds trial 1'


def test_a_lease_is_for_one_attempt(service: Service) -> None:
    study = service.study('a')
    first = ask(study)
    lose(first, WorkerLoss('it crashed', counts=True), 3)
    assert ask(study).view.attempt == 2
    # A thread of the worker still has the first attempt.
    reply = service.coordinator.heartbeat('a', 1, 1, 0, None)
    assert (reply.held, reply.reason) == (False, 'trial 1 is held by a, attempt 2')


def test_a_study_is_not_deleted_under_its_workers(service: Service) -> None:
    study = service.study('a')
    trial = ask(study)
    with pytest.raises(RequestRejectedError, match='1 trials are running'):
        service.coordinator.delete_study()
    trial.fail('no')
    service.coordinator.delete_study()
    assert service.coordinator.study('').version == ''


def test_a_new_trial_has_no_fields_of_the_service(service: Service) -> None:
    parameters = ask(service.study('w')).view.record.parameters
    forged = TrialRecord(parameters, attempt=7, failures=Failures(faults=9))
    content = encode_trial(forged).SerializeToString()
    (added,) = service.coordinator.add([content], '', 'a', 'r', None).trials
    record = parse_trial(added)
    assert (record.attempt, record.failures, record.holder) == (1, Failures(), '')


@pytest.mark.parametrize(
    ('loss', 'attempt'),
    [
        (WorkerLoss('the machine was taken away', is_dead=True), 1),
        (WorkerLoss('it crashed', counts=True, is_dead=True), 2),
        (WorkerLoss('it cannot be reached'), 2),
    ],
)
def test_an_attempt_that_may_come_back_or_counts_gets_a_new_number(
    loss: WorkerLoss, attempt: int, service: Service
) -> None:
    study = service.study('a', faults=Faults(max_attempts=2))
    trial = ask(study)
    lose(trial, loss, 2)
    assert (trial.view.state, trial.view.attempt, trial.view.record.holder) == (
        'ACTIVE',
        attempt,
        '',
    )
    again = ask(study)
    assert (again.id, again.resumed) == (1, True)
    lose(again, loss, 2)
    assert again.view.state == ('INFEASIBLE' if loss.counts else 'ACTIVE')
    if loss.counts:
        assert again.view.reason == 'it crashed (attempt 2 of 2)'


def test_a_trial_that_kills_its_workers_without_a_trace_is_given_up(service: Service) -> None:
    study = service.study('a', faults=Faults(max_attempts=1))
    for steps in [0] * (MAX_LOSSES - 1) + [3] + [0] * (MAX_LOSSES - 1):
        trial = ask(study)
        assert trial.id == 1
        heartbeat(study, steps)
        lose(trial, WorkerLoss('killed', is_dead=True), 1)
    assert study.trial(1).reason == f'killed ({MAX_LOSSES} times in a row, without one more step)'


def test_a_loss_that_does_not_count_never_ends_a_trial(service: Service) -> None:
    study = service.study('a', faults=Faults(max_attempts=3))
    lose(ask(study), WorkerLoss('it crashed', counts=True, is_dead=True), 3)
    again = ask(study)
    # Fewer attempts are allowed now than there were: that is for the next one that counts.
    lose(again, WorkerLoss('the machine was taken away', is_dead=True), 1)
    assert service.study('').trial(1).state == 'ACTIVE'


def test_a_trial_that_was_given_back_is_there_for_all(service: Service) -> None:
    first, second = service.study('a'), service.study('b')
    ask(first).release('after step 3')
    trial = ask(second)
    assert (trial.id, trial.view.attempt) == (1, 1)
    assert [event['event'] for event in trial.view.history] == ['claimed', 'released', 'claimed']


def test_a_repeated_request_is_executed_once(service: Service) -> None:
    study = service.study('a')
    trial = ask(study)
    stored = service.coordinator.changes('', 0).trials[0]
    new = encode_trial(dataclasses.replace(parse_trial(stored), metadata={'x': 'y'}))
    call: dict[str, Any] = {
        'id': 1,
        'expected': digest(stored),
        'trial': new.SerializeToString(),
        'worker': 'a',
        'attempt': 1,
        'request_id': 'r1',
    }
    first = service.coordinator.update(**call)
    assert first.done
    for _ in range(2):
        assert service.coordinator.update(**call) == first
        service.restart()
    assert not service.coordinator.update(**(call | {'request_id': 'r2'})).done
    trial.report(10, {'loss': 1.0, 'accuracy': 0.5})
    added = TrialProto(state=TrialProto.State.REQUESTED, parameters=new.parameters)
    add: dict[str, Any] = {
        'trials': [added.SerializeToString()],
        'suggest_lock': '',
        'worker': 'a',
        'request_id': 'r3',
        'after': None,
    }
    added_once = service.coordinator.add(**add)
    for _ in range(2):
        assert service.coordinator.add(**add) == added_once
        service.restart()
    assert len(study.trials) == 2


def test_concurrent_changes_of_one_trial_are_all_kept(service: Service) -> None:
    first, second = service.study('a'), service.study('')
    added = first.add({})
    read = second.open_trial(added.id)
    added.set_metadata({'x': '1'})
    read.set_metadata({'y': '2'})
    assert first.trial(added.id).record.metadata == {'x': '1', 'y': '2'}


def test_a_client_cannot_change_decisions_or_attempts(service: Service) -> None:
    study = service.study('a')
    ask(study)
    stored = service.coordinator.changes('', 0).trials[0]
    call: dict[str, Any] = {'id': 1, 'expected': digest(stored), 'worker': 'a', 'attempt': 1}
    changed = TrialProto.FromString(stored)
    (rate,) = (each for each in changed.parameters if each.parameter_id == 'rate')
    rate.value.number_value = 0.05
    with pytest.raises(RequestRejectedError, match='decisions cannot be changed'):
        service.coordinator.update(**call, trial=changed.SerializeToString(), request_id='r1')
    forged = dataclasses.replace(
        parse_trial(stored), holder='b', attempt=7, failures=Failures(faults=9)
    )
    changed = encode_trial(forged)
    service.coordinator.update(**call, trial=changed.SerializeToString(), request_id='r2')
    trial = service.study('').trial(1)
    assert (trial.record.holder, trial.attempt) == ('a', 1)
    assert trial.record.failures == Failures()
    with pytest.raises(RequestRejectedError, match='only a suggested trial'):
        service.coordinator.add([stored], '', 'a', 'r3', None)


def test_a_service_that_starts_again_finds_workers_where_they_were(service: Service) -> None:
    first, second = service.study('a'), service.study('b')
    trial = ask(first)
    service.restart()
    assert ask(second).id == 2
    trial.report(10, {'loss': 1.0, 'accuracy': 0.5})
    assert heartbeat(first) is None
    service.now += 9
    assert heartbeat(first) is None
    trial.complete()
    assert second.trial(1).state == 'COMPLETED'
    service.now += 9
    assert ask(first).id == 2  # Whose worker was silent.


def test_a_search_that_starts_again_has_no_workers_yet(service: Service) -> None:
    first = service.study('a')
    ask(first)
    service.restart(workers_may_live=False)
    trial = ask(service.study('b'))
    assert (trial.id, trial.view.attempt) == (1, 1)
    assert trial.view.history[1]['detail'] == 'the search ended, or was killed'


@pytest.mark.parametrize('workers_may_live', [False, True])
def test_a_loss_that_does_not_count_ends_no_trial_that_had_a_fault(
    service: Service, workers_may_live: bool
) -> None:
    first = service.study('a', faults=Faults(max_attempts=2))
    lose(ask(first), WorkerLoss('it crashed', counts=True), 2)
    assert ask(first).view.attempt == 2
    service.restart(workers_may_live)
    service.now += 20  # Longer than its lease, before its worker has sent its options again.
    trial = ask(service.study('b', faults=Faults(max_attempts=2)))
    assert (trial.id, trial.view.state, trial.view.attempt) == (1, 'ACTIVE', 2 + workers_may_live)


@pytest.mark.pax('Controller modes')
def test_one_worker_has_the_suggest_lock_at_a_time(service: Service) -> None:
    a, b = service.store('a'), service.store('b')
    service.study('c')
    suggest_lock = service.coordinator.acquire_suggest_lock('a').suggest_lock
    assert suggest_lock
    assert service.coordinator.acquire_suggest_lock('b').suggest_lock == ''
    # It calls again, as the reply was lost.
    again = service.coordinator.acquire_suggest_lock('a').suggest_lock
    assert again
    service.now += 1000  # It is gone.
    assert service.coordinator.acquire_suggest_lock('b').suggest_lock
    with pytest.raises(RequestRejectedError, match='another worker has the suggest lock'):
        service.coordinator.add([], again, 'a', 'r', False)
    a.close()
    b.close()


def test_the_suggest_lock_is_free_after_the_addition_of_a_suggestion(service: Service) -> None:
    study = service.study('a')
    decisions = study.suggester.next(1)[0].decisions
    with study.store.turn() as add:
        parameters = to_parameters(study.space.spec, decisions)
        assert service.coordinator.acquire_suggest_lock('b').suggest_lock == ''
        add(TrialRecord(parameters, id=1))
        assert service.coordinator.acquire_suggest_lock('b').suggest_lock


def elsewhere(study: Study, decisions: Any) -> TrialRecord:
    """A trial that ended in another study."""
    parameters = to_parameters(study.space.spec, decisions)
    now = study.store.now()
    return TrialRecord(parameters, status=Status.INFEASIBLE, reason='elsewhere', ended=now)


def test_a_suggestion_that_was_overtaken_is_made_again(service: Service) -> None:
    study, other = service.study('a'), service.study('')
    decisions = study.suggester.next(1)[0].decisions

    def overtaken() -> None:
        other.store.add_trials([elsewhere(other, decisions)])
        service.before['add'] = lambda: other.add({})

    service.before['add'] = overtaken
    trial = ask(study)
    assert (trial.id, trial.lineage.origin) == (
        2,
        'added',
    )  # It comes before what would have been tried.
    finish(trial)
    assert ask(study).id == 3
    assert service.called.count('acquire_suggest_lock') == 3


def test_a_trial_that_was_added_comes_before_a_suggestion(service: Service) -> None:
    study, other = service.study('a'), service.study('')
    service.before['acquire_suggest_lock'] = lambda: other.add({})
    trial = ask(study)
    assert (trial.id, trial.lineage.origin) == (1, 'added')


def test_changes_of_other_processes_are_visible(service: Service, tmp_path: Path) -> None:
    study = service.study('a')
    trial = ask(study)
    with contextlib.closing(LocalStore(Database(tmp_path / 'studies.db'), 'toys')) as outside:
        stop_requests.request_pause(outside)
        outside.apply(1, lambda record, _: dataclasses.replace(record, metadata={'x': 'y'}))
        outside.add_trials([TrialRecord(study.trial(1).record.parameters)])
        assert study.record.pause_requested
        trial.report(10, {'loss': 1.0, 'accuracy': 0.5})
        assert study.trial(1).record.metadata == {'x': 'y'}
        assert len(study.trials) == 2
        outside.delete_trial(2)
        assert len(study.trials) == 1


def test_a_long_study_comes_in_pages(service: Service) -> None:
    first = service.study('a')
    for trial in run(first):
        first.open_trial(trial.id).set_metadata({'text': 'x' * 3 * 2**20})
    service.called.clear()
    second = service.study('b')
    assert [each.decisions for each in second.trials] == [each.decisions for each in first.trials]
    assert service.called.count('changes') >= len(first.trials) > 2


def test_the_history_has_an_end() -> None:
    record, now = TrialRecord({}, id=1), datetime.datetime.now(datetime.UTC)
    for i in range(300):
        record = transitions.add_event(record, 'claimed', now, step=i)
    assert [event.step for event in record.history] == list(range(100, 300))


def test_a_study_of_another_experiment_is_left_alone(service: Service) -> None:
    run(service.study('a'))
    before = service.coordinator.study('')
    with pytest.raises(UserError, match='holds a study of another experiment'):
        open_study('anywhere', toy(rate=0.5), store=service.store('b'))
    assert service.coordinator.study('') == before


def test_a_trial_that_was_asked_for_outside_is_kept_until_it_ends(service: Service) -> None:
    assert len(list(ask_tell.ask(service.study(''), 2))) == 2
    service.now = 1000.0
    assert ask(service.study('a')).id == 3
    service.restart(workers_may_live=False)
    assert ask(service.study('b')).id == 3
    told = ask_tell.tell(service.study(''), 2, ['loss=0.5', 'accuracy=1'], None)
    assert told['rewards'] == {'loss': 0.5}
    with pytest.raises(UserError, match='trial 3 is active by b: report a trial'):
        ask_tell.tell(service.study(''), 3, ['loss=0.5'], None)
