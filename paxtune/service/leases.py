"""Leases: which worker owns which trial of a study, on the clock of the service."""

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from paxtune.service.schema import WorkerOptions
from paxtune.study.record import Status, TrialRecord
from paxtune.study.transitions import WorkerLoss, is_outside

LEASE_SECONDS = 30.0
"""Time without a heartbeat after which a worker loses its trial."""

_STALL_SECONDS = 3.0


_LANE = '/'


def lane_name(worker: str, index: int) -> str:
    """Names a lane of a worker that runs several trials at a time: it has leases of its own.

    Example:
        >>> lane_name('a-1', 0), process_of(lane_name('a-1', 0)), process_of('a-1')
        ('a-1/0', 'a-1', 'a-1')
    """
    return f'{worker}{_LANE}{index}'


def process_of(worker: str) -> str:
    """Returns the worker that a lane belongs to, or the worker itself."""
    return worker.partition(_LANE)[0]


@dataclasses.dataclass
class Lease:
    """A worker's claim on a trial.

    Attributes:
        worker: the owner.
        attempt: the attempt's number.
        expires: the time at which the worker loses the trial, unless it sends a heartbeat.
        progress: the number of steps that the worker has done.
        progressed: the time at which `progress` changed last.
        timeout: seconds that a step may take; 0 for no limit.
        max_attempts: attempts that the trial may have; unlimited until its worker sets a limit.
    """

    worker: str
    attempt: int
    expires: float
    progress: int = 0
    progressed: float = 0.0
    timeout: float = 0.0
    max_attempts: int = sys.maxsize

    def set_options(self, options: WorkerOptions | None) -> None:
        """Sets the limits of a worker; None keeps the last ones."""
        if options is not None:
            self.timeout, self.max_attempts = options.trial_timeout, options.max_attempts


class Leases(dict[int, Lease]):
    """The leases of a study, by the number of the trial. Not thread-safe."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """Makes an empty table. Without a heartbeat a lease lasts `seconds` on the clock."""
        super().__init__()
        self.seconds, self._clock = seconds, clock
        self._ticked: float | None = None

    def tick(self) -> None:
        """Shows, every second, that the service runs. Leases are extended by a longer time."""
        self._ticked = self._clock() if self._ticked is None else self._now()

    def _now(self) -> float:
        now = self._clock()
        if self._ticked is not None:
            if (stall := now - self._ticked) > _STALL_SECONDS:
                for lease in self.values():
                    lease.expires += stall
                    lease.progressed += stall
            self._ticked = now
        return now

    def grant(self, record: TrialRecord, options: WorkerOptions | None = None) -> Lease:
        """Leases a trial to its holder."""
        now = self._now()
        seconds = math.inf if is_outside(record.holder) else self.seconds
        lease = Lease(record.holder, record.attempt, now + seconds, progressed=now)
        lease.set_options(options)
        self[record.id] = lease
        return lease

    def follow(self, active: Iterable[TrialRecord]) -> None:
        """Replaces the leases by the holders of the ACTIVE trials."""
        held = [each for each in active if each.holder]
        for each in held:
            if not self.is_held(each.id, each.holder, each.attempt):
                self.grant(each)
        for id_ in self.keys() - {each.id for each in held}:
            del self[id_]

    def owner(self, id_: int) -> str:
        """Says who owns a trial."""
        if (lease := self.get(id_)) is None:
            return f'no worker holds trial {id_}'
        return f'trial {id_} is held by {lease.worker}, attempt {lease.attempt}'

    def of_worker(self, worker: str) -> int | None:
        """Returns the trial that a worker owns."""
        return next((id_ for id_, lease in self.items() if lease.worker == worker), None)

    def of_process(self, worker: str) -> list[int]:
        """Returns the trials that a worker and its lanes own."""
        return [
            id_ for id_, lease in self.items() if worker in (lease.worker, process_of(lease.worker))
        ]

    def is_held(self, id_: int, worker: str, attempt: int) -> bool:
        """Returns True if a worker owns a trial in an attempt."""
        lease = self.get(id_)
        return lease is not None and (lease.worker, lease.attempt) == (worker, attempt)

    def may_write(self, record: TrialRecord, worker: str, attempt: int) -> bool:
        """Returns True if a worker, or '' for no worker, may write a trial."""
        if record.status is not Status.ACTIVE or record.id not in self:
            return worker in ('', record.holder)
        return self.is_held(record.id, worker, attempt)

    def renew(self, id_: int, progress: int, options: WorkerOptions | None = None) -> None:
        """Renews a lease, unless it has expired."""
        lease, now = self[id_], self._now()
        if progress != lease.progress:
            lease.progress = progress
            # A lane waits while another one works, and hangs with it.
            for each in self.of_process(process_of(lease.worker)):
                self[each].progressed = now
        lease.set_options(options)
        if now < lease.expires:
            lease.expires = now + self.seconds

    def expired(self) -> Iterator[tuple[int, Lease, WorkerLoss]]:
        """Yields the leases without a heartbeat or without progress, with the loss."""
        now = self._now()
        trials = Counter(process_of(lease.worker) for lease in self.values())
        for id_, lease in list(self.items()):
            if now >= lease.expires:
                loss = WorkerLoss(f'its worker sent no heartbeat for {self.seconds:g} s')
                yield id_, lease, loss
            elif lease.timeout and now - lease.progressed > lease.timeout:
                is_alone = trials[process_of(lease.worker)] == 1
                loss = WorkerLoss(f'it made no step for {lease.timeout:g} s', counts=is_alone)
                yield id_, lease, loss
