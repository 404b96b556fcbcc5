"""Lanes: a worker with several trials at a time has a lease for each of them."""

from paxtune.service import remote_store
from paxtune.service.leases import lane_name
from paxtune.study.transitions import WorkerLoss
from tests.paxtune.service.clocked import Service
from tests.paxtune.studies import ask


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
