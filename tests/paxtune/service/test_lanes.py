"""Lanes: a worker with several trials at a time has a lease for each of them."""

from paxtune.config.faults import Faults
from paxtune.service import remote_store
from paxtune.service.leases import lane_name
from paxtune.service.remote_store import RemoteStore
from paxtune.service.schema import WorkerOptions
from paxtune.study.transitions import WorkerLoss
from tests.factories.clocked_service import Service, heartbeat
from tests.factories.studies import ask


def test_a_lost_worker_loses_the_trials_and_the_suggest_lock_of_its_lanes(service: Service) -> None:
    lanes = [service.study(lane_name('a', index)) for index in range(2)]
    other = service.study('ab')
    for study in (*lanes, other):
        ask(study)
    assert service.coordinator.acquire_suggest_lock(lane_name('a', 1)).suggest_lock
    client = service.client()
    assert remote_store.lose(client, 'a', WorkerLoss('killed', is_dead=True), 1) == 1
    assert [trial.record.holder for trial in other.trials] == ['', '', 'ab']
    assert service.coordinator.acquire_suggest_lock('ab').suggest_lock
    assert remote_store.lose(client, 'a', WorkerLoss('killed', is_dead=True), 1) is None


def test_a_worker_is_revoked_with_the_lease_of_a_lane(service: Service) -> None:
    ask(service.study(lane_name('a', 1)))
    service.now = 11.0
    assert service.coordinator.revoked(['a', 'b']).workers == ['a']


def test_a_loss_that_counts_does_so_for_a_worker_with_one_trial(service: Service) -> None:
    lanes = [
        service.study(lane_name('a', index), faults=Faults(max_attempts=1)) for index in (0, 1)
    ]
    for study in lanes:
        ask(study)
    crash = WorkerLoss('it crashed', counts=True, is_dead=True)
    remote_store.lose(service.client(), 'a', crash, 1)
    assert [trial.status for trial in lanes[0].trials] == ['active', 'active']
    ask(lanes[0])
    remote_store.lose(service.client(), 'a', crash, 1)
    assert [trial.status for trial in lanes[0].trials] == ['infeasible', 'active']


def test_a_lane_makes_progress_with_the_others_and_hangs_with_them(service: Service) -> None:
    lanes = [
        service.study(lane_name('a', index), faults=Faults(max_attempts=1)) for index in (0, 1)
    ]
    for study in lanes:
        assert isinstance(study.store, RemoteStore)
        study.store.options = WorkerOptions(trial_timeout=25.0, max_attempts=1)
        ask(study)
    for progress in range(1, 6):
        service.now += 8
        assert heartbeat(lanes[0], progress) is None and heartbeat(lanes[1]) is None
    for _ in range(3):
        service.now += 8
        assert heartbeat(lanes[0], 5) is None and heartbeat(lanes[1]) is None
    service.now += 8
    assert heartbeat(lanes[0], 5) is not None and heartbeat(lanes[1]) is not None
    assert [trial.status for trial in lanes[0].trials] == ['active', 'active']
    assert service.coordinator.revoked(['a']).workers == ['a']
