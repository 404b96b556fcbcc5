from collections.abc import Callable

from trainer.runtime import processes


class InterruptPolicy:
    """Decides after each step, in agreement with all processes, if the run stops."""

    def __init__(self, should_interrupt: Callable[[], bool]) -> None:
        self._should_interrupt = should_interrupt
        self._agreed = False

    def before_step(self, step: int) -> None:
        """Makes sure that all processes are about to do the step, and agrees on an interrupt."""
        # Each step has one round. Without it a process could wait forever, alone in a step.
        if processes.count() > 1:
            self._agreed = processes.agree(self._requested(step))

    def after_step(self, step: int, has_reported: bool) -> bool:
        """Returns the decision; a single process asks only here."""
        if processes.count() == 1:
            return self._requested(step)
        if has_reported:  # The receiver of the report may have requested an interrupt.
            self._agreed = processes.agree(self._agreed or self._should_interrupt())
        return self._agreed

    def before_training(self) -> bool:
        """Returns the decision after the report of the step that the run resumed from."""
        return processes.agree(self._should_interrupt())

    def _requested(self, step: int) -> bool:
        is_preempted = processes.is_preempted(step)  # JAX counts calls: ask at every step.
        return self._should_interrupt() or is_preempted
