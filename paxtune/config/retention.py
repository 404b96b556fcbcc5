"""The retention of checkpoints in a study."""

from trainer.symbolic.component import Component, require_above_zero, require_not_negative


class Retention(Component):
    """The checkpoints of ended trials that a study keeps. It may change later.

    Attributes:
        best: the number of trials, the best ones, whose checkpoints are kept; None for all.
        max_disk_gb: the disk space of all trials, in 10⁹ bytes. Beyond it, checkpoints of ended
            trials are removed, the worst trials first.
    """

    best: int | None = 10
    max_disk_gb: float | None = None

    def check(self) -> None:
        require_not_negative(self, 'best')
        require_above_zero(self, 'max_disk_gb')
