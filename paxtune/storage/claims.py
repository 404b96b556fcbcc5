"""The trial that a store without leases hands out next."""

import datetime
from collections.abc import Callable, Iterable

from paxtune.study import transitions
from paxtune.study.record import Status, TrialRecord
from paxtune.study.transitions import Transition


def next_claim(
    trials: Iterable[TrialRecord], worker: str, is_alive: Callable[[str], bool]
) -> tuple[int, Transition] | None:
    """Returns the number of a trial that waits to run, and its claim; None if none does.

    A trial that was claimed before, and whose process is gone, comes first.

    Args:
        trials: the unended ones of the study, as they stand now.
        worker: claims the trial.
        is_alive: whether the worker of a name may be alive.
    """
    waiting = [each for each in trials if not each.status.has_ended]
    active = [each for each in waiting if each.status is Status.ACTIVE]
    ownerless = [each for each in active if not is_alive(each.holder)]
    requested = [each for each in waiting if each.status is Status.REQUESTED]

    def claim(record: TrialRecord, now: datetime.datetime) -> TrialRecord:
        if record.holder not in ('', worker):
            # This never counts: a person starts the search again each time.
            record = transitions.add_event(record, 'lost', now, detail='the search was killed')
        return transitions.claim(record, worker, now)

    for each in ownerless + requested:
        return each.id, claim
    return None
