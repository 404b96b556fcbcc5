"""The handling of failures in a study."""

from paxtune.config.error_patterns import ErrorPattern
from trainer.symbolic.component import (
    Component,
    require_above_zero,
    require_not_negative,
    require_positive,
)


class Faults(Component):
    """The tolerance of a study for crashes and errors. It may change later.

    Attributes:
        max_attempts: the number of attempts at a trial whose worker crashes, hangs, or runs out of
            memory, each from its last checkpoint. Attempts that end for other reasons do not count.
        trial_timeout: the seconds without a step after which a worker counts as hung. Compilation
            and evaluation are part of a step, and an execution of several steps is one.
        max_failures: the study stops when more trials than this have failed with an error.
        max_consecutive_failures: stops the study after this number of consecutive failures.
            By default it stops when the first three raised the same error, before any was measured.
        errors_to_skip: errors that make a trial infeasible. Others stop the study. None for all
            but an `OSError` and a checkpoint that cannot be written.
        errors_to_stop_study: errors that stop the study, in spite of `errors_to_skip`.
    """

    max_attempts: int = 3
    trial_timeout: float | None = None
    max_failures: int | None = None
    max_consecutive_failures: int | None = None
    errors_to_skip: list[ErrorPattern] | None = None
    errors_to_stop_study: list[ErrorPattern] = []

    def check(self) -> None:
        require_positive(self, 'max_attempts', 'max_consecutive_failures')
        require_not_negative(self, 'max_failures')
        require_above_zero(self, 'trial_timeout')
