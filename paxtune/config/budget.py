"""The budget of a study."""

import datetime

from trainer.symbolic.component import Component, require_above_zero, require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.plain_numbers import plain


class Budget(Component):
    """The limits of a study, which ends when one of them is reached. It may change later.

    Attributes:
        trials: the number of trials in the study; None for all that a finite space has.
        hours: the run time of all trials together.
        device_hours: the same, times the devices of each trial.
        target_reward: a reward that is good enough.

    Example:
        >>> Budget(64, hours=2.0).trials
        64
    """

    trials: int | None = None
    hours: float | None = None
    device_hours: float | None = None
    target_reward: float | None = None

    @property
    def has_hours(self) -> bool:
        """Returns True if the run time of trials is limited."""
        return self.hours is not None or self.device_hours is not None

    def check(self) -> None:
        require_positive(self, 'trials')
        require_above_zero(self, 'hours', 'device_hours')


def hours_of(timeout: float | datetime.timedelta, trials_at_once: int) -> float:
    """Computes `Budget.hours` of a search that may take a time.

    Args:
        timeout: seconds, or a `timedelta`.
        trials_at_once: the number of trials that take the time together.

    Raises:
        UserError: the time is not a positive number.

    Example:
        >>> hours_of(1800, trials_at_once=4)
        2.0
    """
    seconds = plain(timeout)
    if isinstance(timeout, datetime.timedelta):
        seconds = timeout.total_seconds()
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise UserError(f'timeout={timeout!r}: expected seconds above 0, or a datetime.timedelta')
    return seconds * trials_at_once / 3600
