"""The budget of a study."""

from trainer.symbolic.component import Component, require_above_zero, require_positive


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
