"""Updates of trials: compare-and-swap, fencing, and repeated requests."""

import dataclasses
import datetime
import hashlib
from collections.abc import Callable
from typing import Any

from paxtune.service.change_feed import ChangeFeed
from paxtune.service.leases import Leases
from paxtune.service.schema import RequestRejectedError
from paxtune.storage.codec import TrialProto, encode_trial, parse_change
from paxtune.storage.stored_measurements import StoredMeasurements
from paxtune.study import transitions
from paxtune.study.record import Failures, RequestIds, Status, TrialRecord
from paxtune.study.record_checks import DamagedRecordError, Rules, check_trial
from paxtune.study.transitions import IllegalTransition
from trainer.symbolic.errors import UserError

_KEPT_REQUESTS = 10_000


def digest(content: bytes) -> str:
    """Returns the SHA-256 that clients send back for compare-and-swap."""
    return hashlib.sha256(content).hexdigest()


def checked(parse: Callable[[Any], Any], content: Any) -> Any:
    """Parses the content of a request; raises RequestRejectedError if it is invalid."""
    try:
        return parse(content)
    except UserError as error:
        raise RequestRejectedError('invalid', str(error)) from error


def sound_trial(
    content: bytes, rules: Rules, newest: int | None, stored: TrialRecord | None = None
) -> TrialRecord:
    """Parses a trial that clients may read; raises RequestRejectedError for any other.

    Args:
        stored: its stored state, whose measurements are not checked again.
    """
    known = () if stored is None else stored.measurements
    record: TrialRecord = checked(lambda each: parse_change(each, known), content)
    assert isinstance(record.measurements, StoredMeasurements)
    num_known = record.measurements.num_known
    checked(lambda each: check_trial(each, rules, newest, num_known), record)
    return record


def new_trial(
    record: TrialRecord, worker: str, request_id: str, now: datetime.datetime
) -> TrialRecord:
    """Returns a new trial without the fields that only the service writes."""
    new = dataclasses.replace(
        record, holder='', attempt=1, failures=Failures(), requests=RequestIds(request_id)
    )
    if record.status is not Status.ACTIVE:
        return new
    new = dataclasses.replace(new, status=Status.REQUESTED, history=())
    return transitions.claim(new, worker, now)


class Requests(dict[str, list[int]]):
    """The last requests that were executed, each with the trials that it wrote.

    Attributes:
        uncommitted: the requests of the open transaction.
    """

    def __init__(self) -> None:
        super().__init__()
        self.uncommitted: list[str] = []

    def forget_uncommitted(self) -> None:
        """Forgets the requests of a transaction that has failed: they will be repeated."""
        for request_id in self.uncommitted:
            self.pop(request_id, None)

    def add(self, request_id: str, *ids: int) -> None:
        """Remembers a request."""
        self.uncommitted.append(request_id)
        self[request_id] = sorted({*self.get(request_id, ()), *ids})
        if len(self) > _KEPT_REQUESTS:
            del self[next(iter(self))]


@dataclasses.dataclass
class Update:
    """A call of `StudyCoordinator.update` that waits for its reply."""

    id: int
    expected: str
    trial: TrialRecord
    worker: str
    attempt: int
    request_id: str
    is_done: bool = False
    content: bytes = b''
    error: Exception | None = None
    written: TrialRecord | None = None

    def decide(self, feed: ChangeFeed, leases: Leases, requests: Requests) -> TrialProto | None:
        """Returns the trial to write; None if the update is rejected or was written before."""
        try:
            return self._decided(feed, leases, requests)
        except (IllegalTransition, DamagedRecordError) as error:
            self.error = RequestRejectedError('invalid', str(error))
        except Exception as error:  # The others in the transaction have nothing to do with it.
            self.error = error
        return None

    def _decided(self, feed: ChangeFeed, leases: Leases, requests: Requests) -> TrialProto | None:
        if self.id not in feed:
            raise RequestRejectedError('missing', f'there is no trial {self.id}')
        content, current = feed[self.id], feed.read(self.id)
        is_repeated = self.request_id in current.requests.changed
        is_repeated |= self.id in requests.get(self.request_id, ())
        # After a repeated write, only its owner may continue the trial.
        may_go_on = leases.may_write(current, self.worker, self.attempt)
        if not may_go_on and (self.trial.holder or not is_repeated):
            raise RequestRejectedError('fenced', leases.owner(self.id))
        self.is_done = is_repeated or digest(content) == self.expected
        if is_repeated or not self.is_done:
            return None
        self.written = transitions.merge(current, self.trial, self.request_id)
        return encode_trial(self.written, TrialProto.FromString(content))
