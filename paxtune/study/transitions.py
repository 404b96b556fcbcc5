"""Transitions of a trial between its states: pure functions of a record, total, without a clock.

Each function returns a new record or raises `IllegalTransition`. A store applies one of them to a
stored record in one transaction, by `applied`, which checks the invariants of a trial.

A trial leaves ACTIVE or PAUSED for an end state exactly once. The number of its attempt never
decreases: it grows when the worker that was lost may come back, and when the loss counts. That
number keeps such a worker from writing.
"""

import dataclasses
import datetime
import math
import socket
import uuid
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from paxtune.objectives.measurement import Measurement
from paxtune.study import attributes, invariants
from paxtune.study.invariants import InvariantError
from paxtune.study.record import MAX_TEXT, Event, Failures, RequestIds, Status, TrialRecord

Transition: TypeAlias = Callable[[TrialRecord, datetime.datetime], TrialRecord]
"""A change of a record at a time (UTC)."""

MAX_LOSSES = 8
"""Losses in a row, without one more step, after which another loss counts."""

_MAX_EVENTS = 200
_MAX_REASON = MAX_TEXT // 2  # An error of users may print a whole array.
_MAX_REQUESTS = 16
_OUTSIDE = 'outside:'  # A name of a host has no colon.


class IllegalTransition(RuntimeError):
    """The state of the trial does not allow the change."""


class DetachedError(Exception):
    """The worker is cut off from its study. The trial is not at fault."""


class LeaseLostError(DetachedError):
    """Another worker, or another attempt, owns the trial."""


class TurnLostError(Exception):
    """The suggestion is outdated: other trials were added first."""


@dataclasses.dataclass(frozen=True)
class WorkerLoss:
    """The loss of a trial's worker.

    Attributes:
        reason: for people.
        counts: whether the trial may be at fault, as with a crash or a hang.
        is_dead: whether the worker is known to be gone, and cannot come back.
    """

    reason: str
    counts: bool = False
    is_dead: bool = False


def applied(transition: Transition, record: TrialRecord, now: datetime.datetime) -> TrialRecord:
    """Applies a transition; raises InvariantError where it breaks an invariant of a trial."""
    after = transition(record, now)
    if broken := invariants.broken(record, after):
        raise InvariantError(f'trial {record.id}: {broken}. This is a defect of paxtune')
    return after


def new_worker(is_outside: bool = False) -> str:
    """Returns a unique name for a worker, or for one outside: see `is_outside`."""
    return f'{_OUTSIDE if is_outside else ""}{socket.gethostname()}-{uuid.uuid4().hex[:8]}'


def is_outside(worker: str) -> bool:
    """Returns True for a worker without a process here, which keeps its trial until it ends."""
    return worker.startswith(_OUTSIDE)


def claim(record: TrialRecord, worker: str, now: datetime.datetime) -> TrialRecord:
    """Gives the trial to a worker.

    Args:
        record: a REQUESTED trial, or an ACTIVE one whose worker is gone.
    """
    if record.status not in (Status.REQUESTED, Status.ACTIVE):
        raise IllegalTransition(
            f'trial {record.id} is {record.status.upper()}: it cannot be claimed'
        )
    claimed = dataclasses.replace(record, status=Status.ACTIVE, holder=worker)
    return add_event(claimed, 'claimed', now)


def release(record: TrialRecord, why: str, now: datetime.datetime) -> TrialRecord:
    """Gives the trial back, to go on later."""
    _require_active(record)
    return dataclasses.replace(add_event(record, 'released', now, detail=why), holder='')


def pause(record: TrialRecord, step: int, why: str, now: datetime.datetime) -> TrialRecord:
    """Pauses the trial at a saved step, until it is promoted or the study ends."""
    _require_active(record)
    noted = add_event(record, 'paused', now, detail=why, step=step)
    pauses = tuple(sorted({*record.pauses, step}))
    return dataclasses.replace(noted, status=Status.PAUSED, holder='', pauses=pauses)


def promote(record: TrialRecord, step: int | None, why: str, now: datetime.datetime) -> TrialRecord:
    """Ends the pause at a step. The next worker that asks claims the trial."""
    if record.status is not Status.PAUSED or record.paused_at != step:
        raise IllegalTransition(f'trial {record.id} is {record.status.upper()}: that pause is over')
    return dataclasses.replace(add_event(record, 'promoted', now, detail=why), status=Status.ACTIVE)


def lose(
    record: TrialRecord, loss: WorkerLoss, max_attempts: int, step: int, now: datetime.datetime
) -> TrialRecord:
    """Takes the trial from its worker: for another attempt, or as infeasible after the last one.

    Args:
        record: an ACTIVE trial.
        max_attempts: the number of losses that count after which the trial is infeasible.
        step: the last step that the worker is known to have reached.
    """
    _require_active(record)
    before = record.failures
    losses = 1 + (0 if step > before.furthest else before.losses)
    reason, counts = loss.reason, loss.counts
    if losses >= MAX_LOSSES and not counts:
        reason, counts = f'{reason} ({losses} times in a row, without one more step)', True
    faults = before.faults + counts
    failures = Failures(faults, 0 if counts else losses, max(step, before.furthest))
    noted = add_event(record, 'failed' if counts else 'lost', now, detail=reason)
    lost = dataclasses.replace(noted, holder='', failures=failures)
    if counts and faults >= max_attempts:
        times = f' (attempt {faults} of {max_attempts})' if max_attempts > 1 else ''
        return fail(lost, f'{reason}{times}', is_error=True, now=now)
    if counts or not loss.is_dead:
        return dataclasses.replace(lost, attempt=record.attempt + 1)
    return lost


def report(
    record: TrialRecord, measurement: Measurement, non_finite: Collection[str]
) -> TrialRecord:
    """Adds a measurement.

    Args:
        record: an ACTIVE trial.
        measurement: finite metrics at a step.
        non_finite: metrics that were NaN or infinite at that step.
    """
    _require_active(record)
    for name in (*measurement.metrics, *non_finite):
        if name.startswith('$'):
            raise ValueError(f'no metric can be called {name!r}: names with $ are for rewards')
    added = (measurement,)
    return dataclasses.replace(
        record,
        measurements=record.measurements + added,
        non_finite={**record.non_finite, **dict.fromkeys(sorted(non_finite), measurement.step)},
    )


def complete(
    record: TrialRecord,
    final: Measurement,
    now: datetime.datetime,
    *,
    reason: str | None = None,
    is_stopped: bool = False,
) -> TrialRecord:
    """Ends the trial with a final measurement.

    Args:
        record: an ACTIVE or PAUSED trial.
        final: final metrics and rewards. Metrics that are NaN or infinite are left out.
        is_stopped: whether it was stopped early. Such a trial is never the best.
    """
    _require_open(record)
    finite = {name: value for name, value in final.metrics.items() if math.isfinite(value)}
    ended = dataclasses.replace(
        record,
        status=Status.STOPPED if is_stopped else Status.COMPLETED,
        final=dataclasses.replace(final, metrics=finite),
        reason=reason and reason[:_MAX_REASON],
    )
    how = 'stopped' if is_stopped else 'completed' if reason is None else 'concluded'
    return _end(ended, how if reason is None else f'{how}: {reason}', now)


def fail(
    record: TrialRecord, reason: str, now: datetime.datetime, *, is_error: bool = False
) -> TrialRecord:
    """Ends the trial as infeasible, without a reward."""
    _require_open(record)
    ended = dataclasses.replace(
        record,
        status=Status.INFEASIBLE,
        reason=reason[:_MAX_REASON],
        is_failed=is_error or record.is_failed,
    )
    return _end(ended, f'infeasible: {reason}', now)


def set_attribute(record: TrialRecord, name: str, value: Any) -> TrialRecord:
    """Sets an attribute of a trial that has not ended.

    Raises:
        ValueError: the value is none that a study keeps, or there are too many.
    """
    _require_open(record)
    found = {**record.attributes, name: attributes.validated(name, value)}
    if len(found) > attributes.MAX_ATTRIBUTES:
        raise ValueError(
            f'trial {record.id} has {attributes.MAX_ATTRIBUTES} attributes already: {name} is one '
            'too many'
        )
    return dataclasses.replace(record, attributes=found)


def add_event(
    record: TrialRecord, event: str, now: datetime.datetime, *, detail: str = '', step: Any = None
) -> TrialRecord:
    """Adds an event to the history, which keeps the last 200."""
    added = Event(now, event, record.attempt, record.holder, detail[:_MAX_REASON], step)
    return dataclasses.replace(record, history=(*record.history, added)[-_MAX_EVENTS:])


def merge(current: TrialRecord, proposed: TrialRecord, request: str) -> TrialRecord:
    """Accepts a proposal of an idempotent `request`, except for fields of the service."""
    fixed = (current.id, current.parameters, current.created)
    if (proposed.id, proposed.parameters, proposed.created) != fixed:
        raise IllegalTransition(f'trial {current.id}: its decisions cannot be changed')
    before, after = current.status, proposed.status
    if before is not after and (before.has_ended or after.has_ended):
        _require_open(current)
    is_held = proposed.status is Status.ACTIVE and bool(proposed.holder)
    merged = dataclasses.replace(
        proposed,
        holder=current.holder if is_held else '',
        attempt=current.attempt,
        failures=current.failures,
        requests=RequestIds(
            current.requests.added, (*current.requests.changed, request)[-_MAX_REQUESTS:]
        ),
    )
    if broken := invariants.broken(current, merged):
        raise IllegalTransition(f'trial {current.id}: {broken}')
    return merged


def _end(record: TrialRecord, how: str, now: datetime.datetime) -> TrialRecord:
    return dataclasses.replace(add_event(record, 'ended', now, detail=how), holder='', ended=now)


def _require_active(record: TrialRecord) -> None:
    if record.status is not Status.ACTIVE:
        raise IllegalTransition(f'trial {record.id} is {record.status.upper()} already')


def _require_open(record: TrialRecord) -> None:
    if not record.status.is_open:
        raise IllegalTransition(f'trial {record.id} is {record.status.upper()} already')
