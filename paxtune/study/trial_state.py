"""Attempts at a trial: who holds it, how it was lost, when it is given up, and its history.

A trial that a scheduler has paused is in nobody's hands.

A trial is tried again from its last checkpoint when its worker was lost. The number of the attempt
is what keeps a worker out that was only thought to be dead: it grows whenever that is possible, and
whenever the loss counts. What a trial's own code raises is no loss: it makes the trial infeasible.
"""

import dataclasses
import datetime
import json
import socket
import uuid
from typing import Any

from paxtune.storage.vizier_store import STATES, TrialProto, note, write_notes

MAX_LOSSES = 8
"""So often in a row can a trial lose its worker, without one more step, before that counts."""

_MAX_EVENTS = 200


@dataclasses.dataclass(frozen=True)
class Loss:
    """What happened to the worker of a trial.

    Attributes:
        reason: for people.
        counts: whether it may be the trial's fault, as a crash and a hang may; a machine that was
            taken away is not.
        is_dead: whether the worker is known to be gone, so that it cannot come back.
    """

    reason: str
    counts: bool = False
    is_dead: bool = False


class DetachedError(Exception):
    """This worker is cut off from its study, which is no fault of its trial."""


class LeaseLostError(DetachedError):
    """The trial was given to another worker, or back, and this one has no say in it any more."""


class TurnLostError(Exception):
    """What was suggested came too late: trials were added in the meantime."""


def new_worker() -> str:
    """A name for a worker, which no other has."""
    return f'{socket.gethostname()}-{uuid.uuid4().hex[:8]}'


def attempt(proto: TrialProto) -> int:
    """The number of the attempt that counts, from 1."""
    return int(note(proto, 'attempt') or 1)


def holder(proto: TrialProto) -> str:
    """The worker that was given the trial; '' for none."""
    return note(proto, 'holder') or ''


def hand_out(proto: TrialProto, worker: str) -> None:
    """Gives a trial to a worker."""
    proto.state = TrialProto.State.ACTIVE
    write_notes(proto, {'holder': worker})
    record(proto, 'claimed', worker=worker)


def release(proto: TrialProto, why: str) -> None:
    """Gives a trial back that is to go on later."""
    record(proto, 'released', worker=holder(proto), detail=why)
    write_notes(proto, {'holder': ''})


def pause(proto: TrialProto, step: int, why: str) -> None:
    """Puts a trial aside after a step: nobody is given it until it is promoted."""
    record(proto, 'paused', worker=holder(proto), step=str(step), detail=why)
    steps = json.dumps(sorted({*pauses(proto), step}))
    write_notes(proto, {'holder': '', 'waits': 'true', 'pauses': steps})


def promote(proto: TrialProto, why: str) -> None:
    """Ends a pause: the next worker that asks is given the trial."""
    record(proto, 'promoted', detail=why)
    write_notes(proto, {'waits': ''})


def is_paused(proto: TrialProto) -> bool:
    """Whether the trial is put aside."""
    return STATES[proto.state] == 'ACTIVE' and bool(note(proto, 'waits'))


def paused_at(proto: TrialProto) -> int | None:
    """The step at which the trial is paused; None where it is not."""
    return pauses(proto)[-1] if is_paused(proto) else None


def pauses(proto: TrialProto) -> list[int]:
    """The steps at which the trial was paused, by step; that of now is among them."""
    steps: list[int] = json.loads(note(proto, 'pauses') or '[]')
    return steps


def lose(proto: TrialProto, loss: Loss, max_attempts: int, step: int = 0) -> None:
    """Takes a trial from its worker: for the next one, or as infeasible after the last attempt.

    Args:
        proto: an ACTIVE trial.
        loss: what happened.
        max_attempts: how many losses that count make the trial infeasible.
        step: how far the worker came, as far as is known.
    """
    furthest = int(note(proto, 'furthest') or 0)
    losses = 1 + (0 if step > furthest else int(note(proto, 'losses') or 0))
    reason, counts = loss.reason, loss.counts
    if losses >= MAX_LOSSES and not counts:
        reason, counts = f'{reason} ({losses} times in a row, without one more step)', True
    faults = int(note(proto, 'faults') or 0) + counts
    record(proto, 'failed' if counts else 'lost', worker=holder(proto), detail=reason)
    changed = {'holder': '', 'faults': str(faults), 'furthest': str(max(step, furthest))}
    write_notes(proto, changed | {'losses': '0' if counts else str(losses)})
    if counts and faults >= max_attempts:
        times = f' (attempt {faults} of {max_attempts})' if max_attempts > 1 else ''
        write_notes(proto, {'failed': 'true'})
        proto.infeasible_reason = f'{reason}{times}'
        proto.state = TrialProto.State.INFEASIBLE
        proto.end_time.GetCurrentTime()
        record(proto, 'ended', detail=f'infeasible: {proto.infeasible_reason}')
    elif counts or not loss.is_dead:
        write_notes(proto, {'attempt': str(attempt(proto) + 1)})


def times_claimed(proto: TrialProto) -> int:
    """How often the trial was given to a worker, as far back as its history goes."""
    return sum(event['event'] == 'claimed' for event in history(proto))


def history(proto: TrialProto) -> list[dict[str, Any]]:
    """What happened to a trial: `time` (ISO, UTC), `event`, `attempt`, `worker`, `detail`."""
    events: list[dict[str, Any]] = json.loads(note(proto, 'history') or '[]')
    return events


def record(proto: TrialProto, event: str, **details: str) -> None:
    """Adds to the history of a trial, of which the last events are kept."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec='milliseconds')
    known = {name: value for name, value in details.items() if value}
    added = {'time': now, 'event': event, 'attempt': attempt(proto), **known}
    kept = [*history(proto), added][-_MAX_EVENTS:]
    write_notes(proto, {'history': json.dumps(kept)})
