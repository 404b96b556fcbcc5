import datetime
from collections.abc import Sequence

from paxtune.analysis.study_poller import LOSS, SPEED
from paxtune.analysis.study_state import TrialProgress
from paxtune.reports.tables import Row


def running_rows(running: Sequence[TrialProgress], now: datetime.datetime) -> list[Row]:
    """Makes a row for each trial that has begun and not ended."""
    return [
        {
            'trial': each.trial.id,
            'state': each.trial.status,
            'worker': each.trial.record.holder or '(waits for one)',
            'attempt': each.trial.attempt,
            'step': each.step,
            'reward': ', '.join(f'{reward:.6g}' for reward in each.rewards),
            LOSS: each.training.get(LOSS),
            'steps/s': each.training.get(SPEED),
            'last event': each.event,
            # Clocks of two machines may differ.
            'seconds ago': each.since and max(0, round((now - each.since).total_seconds())),
        }
        for each in running
    ]
