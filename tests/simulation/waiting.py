"""Invariants of waiting: who asks the service for a trial gets one that is free.

A trial is free unless a worker has it and has sent heartbeats. Time is counted in seconds in which
the service runs: it extends leases by the time for which it stood still.
"""

from collections import Counter

from paxtune.service import schema
from paxtune.study.record import Status, TrialRecord
from tests.simulation.world import World

_SLACK = 5  # Seconds.


class Waiting:
    """Watches heartbeats and claims where the service handles them."""

    def __init__(self, world: World) -> None:
        self._world = world
        # By trial, worker and attempt: seconds since the last heartbeat.
        self._silent: Counter[tuple[int, str, int]] = Counter()
        self._is_in_doubt = False

    def doubt(self) -> None:
        """Notes that the next call may read the rows again, and grant new leases."""
        self._is_in_doubt = True

    def tick(self) -> None:
        """Notes that the service has run for another second."""
        held = {_lease(each) for each in self._world.ledger.records.values() if each.holder}
        self._silent = Counter({lease: self._silent[lease] + 1 for lease in held})

    def handle(self) -> None:
        """Notes that the service begins to handle a call."""
        if self._is_in_doubt:
            self._is_in_doubt = False
            self._silent.clear()

    def heard(self, request: schema.HeartbeatRequest) -> None:
        """Notes a heartbeat."""
        self._silent.pop((request.id, request.worker, request.attempt), None)

    def claimed(self, reply: schema.ClaimReply) -> None:
        """Checks the answer to a worker that asked for a trial."""
        world, records = self._world, self._world.ledger.records.values()
        longest = world.faults.settings.lease + _SLACK
        for each in records:
            if each.holder and self._silent[_lease(each)] > longest:
                silent = self._silent.pop(_lease(each))
                text = f'trial {each.id} stays with {each.holder}, silent for {silent} s'
                world.violate('kept from others', text)
        if reply.trial is None:
            free = [each.id for each in records if _is_free(each)]
            if free:
                world.violate('kept from others', f'trials {free} are free, and none was given')


def _lease(record: TrialRecord) -> tuple[int, str, int]:
    return record.id, record.holder, record.attempt


def _is_free(record: TrialRecord) -> bool:
    is_active = record.status is Status.ACTIVE and not record.holder
    return is_active or record.status is Status.REQUESTED
