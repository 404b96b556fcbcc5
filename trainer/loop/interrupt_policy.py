from collections.abc import Callable

from trainer.runtime import processes


class InterruptPolicy:
    """Decides after each execution of steps, in agreement with all processes, if the run stops."""

    def __init__(self, should_interrupt: Callable[[], bool]) -> None:
        self._should_interrupt = should_interrupt
        self._agreed = False

    def before_steps(self, steps: range) -> None:
        """Makes sure that all processes are about to do the steps, and agrees on an interrupt."""
        # Each execution has one round. Without it a process could wait forever, alone in a step.
        if processes.count() > 1:
            self._agreed = processes.agree(self._requested(steps))

    def after_steps(self, steps: range, has_reported: bool) -> bool:
        """Returns the decision; a single process asks only here."""
        if processes.count() == 1:
            return self._requested(steps)
        if has_reported:  # The receiver of the report may have requested an interrupt.
            self._agreed = processes.agree(self._agreed or self._should_interrupt())
        return self._agreed

    def before_training(self) -> bool:
        """Returns the decision after the report of the step that the run resumed from."""
        return processes.agree(self._should_interrupt())

    def _requested(self, steps: range) -> bool:
        # JAX names a step at which all processes save: ask for each of them.
        is_preempted = [processes.is_preempted(step) for step in steps]
        return self._should_interrupt() or any(is_preempted)
