"""The course of trials by their records: attempts of workers, and which trial comes from which."""

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from paxtune.study.record import TrialRecord

if TYPE_CHECKING:
    from paxtune.study.trial import Trial

_ENDS = {'ended', 'released', 'paused', 'lost', 'failed'}


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A worker's time with a trial.

    Attributes:
        trial: its number.
        attempt: the number of the attempt.
        worker: '' if it is not known.
        begin: in UTC.
        end: in UTC; the present for a running attempt.
        outcome: how it ended: a state of the trial, 'released', 'lost', 'failed' or 'running'.
    """

    trial: int
    attempt: int
    worker: str
    begin: datetime.datetime
    end: datetime.datetime
    outcome: str


def attempts(records: Iterable[TrialRecord], now: datetime.datetime) -> list[Attempt]:
    """Lists the attempts of trials, in the order of trials.

    A trial keeps its last 200 events. A trial that ended without a claim in them has
    one attempt: its run time, or the time since it was added.
    """
    return [attempt for record in records for attempt in _attempts(record, now)]


def _attempts(record: TrialRecord, now: datetime.datetime) -> Iterator[Attempt]:
    claim = None
    is_known = False
    for event in record.history:
        if event.event == 'claimed':
            if claim is not None:  # A worker that is gone without a word.
                yield _attempt(record, claim.worker, claim.attempt, claim.time, event.time, 'lost')
            claim, is_known = event, True
        elif event.event in _ENDS and claim is not None:
            outcome = str(record.status) if event.event == 'ended' else event.event
            yield _attempt(record, claim.worker, claim.attempt, claim.time, event.time, outcome)
            claim = None
    if claim is not None and not record.status.has_ended:
        yield _attempt(record, claim.worker, claim.attempt, claim.time, now, 'running')
    elif not is_known and record.ended is not None and record.created is not None:
        seconds = datetime.timedelta(seconds=record.run_time.seconds)
        begin = record.ended - seconds if record.run_time.seconds else record.created
        yield _attempt(record, '', record.attempt, begin, record.ended, str(record.status))


def _attempt(
    record: TrialRecord,
    worker: str,
    attempt: int,
    begin: datetime.datetime,
    end: datetime.datetime,
    outcome: str,
) -> Attempt:
    return Attempt(record.id, attempt, worker, begin, max(begin, end), outcome)


Kind: TypeAlias = Literal['weights', 'decisions', 'replicate', 'retry']
"""The part of a trial that comes from another one."""


@dataclasses.dataclass(frozen=True)
class Relation:
    """A trial that another one comes from.

    Attributes:
        parent: the number of the earlier trial.
        child: the number of the later trial.
        kind: the relation of the child to the parent.
        step: the step of the weights, if known.
    """

    parent: int
    child: int
    kind: Kind
    step: int | None = None


def relations(trials: 'Sequence[Trial]') -> list[Relation]:
    """Lists which trial comes from which: one relation for each trial that comes from another."""
    known = {trial.id for trial in trials}
    found = [relation for trial in trials if (relation := _relation(trial)) is not None]
    return [each for each in found if each.parent in known]


def _relation(trial: 'Trial') -> Relation | None:
    lineage = trial.lineage
    if (weights := lineage.weights_from) is not None:
        return Relation(weights[0], trial.id, 'weights', weights[1])
    if lineage.retry_of is not None:
        return Relation(lineage.retry_of, trial.id, 'retry')
    if lineage.replicate_of_here is not None:
        return Relation(lineage.replicate_of_here, trial.id, 'replicate')
    if lineage.parent is not None:
        return Relation(lineage.parent, trial.id, 'decisions')
    return None


def related_to(number: int, trials: 'Sequence[Trial]') -> list[int]:
    """Lists the trials that a trial comes from, or that come from it."""
    pairs = [(each.parent, each.child) for each in relations(trials)]
    return [sum(pair) - number for pair in pairs if number in pair]
