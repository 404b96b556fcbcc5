"""Invariants of a trial that all transitions keep. A violation is a bug of a transition."""

from paxtune.study.record import Status, TrialRecord


class InvariantError(Exception):
    """A change would break an invariant of a trial, and is not made: a defect of this program."""


_WITH_REWARDS = (Status.COMPLETED, Status.STOPPED)


def broken(before: TrialRecord, after: TrialRecord) -> str:
    """Names the invariant that a change of a trial violates; '' without one.

    Each check takes a constant time: stores make them at every write.
    """
    if (after.id, after.created) != (before.id, before.created):
        return 'its number or its time of creation has changed'
    if after.parameters is not before.parameters and after.parameters != before.parameters:
        return 'its decisions have changed'
    if after.attempt < before.attempt:
        return f'attempt {after.attempt} comes after attempt {before.attempt}'
    if len(after.measurements) < len(before.measurements):
        return 'measurements are missing'
    grown = after.pauses is not before.pauses
    if grown and after.pauses != tuple(sorted({*after.pauses, *before.pauses})):
        return f'its pauses at {before.pauses} have become {after.pauses}'
    if after.holder and after.status != Status.ACTIVE:
        return f'{after.holder} holds it, and it is {after.status}'
    if before.status.has_ended:
        return _changed_end(before, after)
    return '' if after.status is before.status else _broken_move(before, after)


def _changed_end(before: TrialRecord, after: TrialRecord) -> str:
    for name in ('status', 'ended', 'final', 'reason', 'is_failed'):
        if getattr(after, name) != getattr(before, name):
            return f'it has ended, and its {name} has changed'
    if len(after.measurements) > len(before.measurements):
        return 'it has ended, and a measurement was added'
    return ''


def _broken_move(before: TrialRecord, after: TrialRecord) -> str:
    """Checks a change of the status of a trial that had not ended."""
    if after.status is Status.REQUESTED:
        return f'it was {before.status}, and waits to be claimed'
    if before.status is Status.REQUESTED and after.status is not Status.ACTIVE:
        return f'no worker has claimed it, and it is {after.status}'
    return broken_state(after)


def broken_state(record: TrialRecord) -> str:
    """Names the invariant that a trial violates by itself; '' without one."""
    if (record.ended is not None) != record.status.has_ended:
        return f'it is {record.status}, and its time of the end is {record.ended}'
    if (record.final is not None) != (record.status in _WITH_REWARDS):
        return f'it is {record.status}, and its final measurement is {record.final}'
    if record.status is Status.PAUSED and not record.pauses:
        return 'it is paused at no step'
    if record.holder and record.status is not Status.ACTIVE:
        return f'{record.holder} holds it, and it is {record.status}'
    return ''
