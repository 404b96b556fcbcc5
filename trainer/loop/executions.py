"""Division of the steps of a run into executions: one step, or several in one program."""

from collections.abc import Iterator, Sequence


def is_due(step: int, every: int, last: int) -> bool:
    """True if work at an interval of steps, and after the last, follows a step.

    A run may resume from a step after its last, which then is the last.
    """
    return step % every == 0 or step >= last


def executions(first: int, last: int, size: int, every: Sequence[int]) -> Iterator[range]:
    """Divides steps into ranges of `size`, and single steps where other work is due in between.

    A run that continues after any range divides its steps as an undisturbed run does.

    Args:
        first: the first step.
        last: the last step.
        size: number of steps in an execution of several.
        every: intervals of the work after steps.

    Example:
        >>> [list(steps) for steps in executions(1, 9, size=3, every=[8])]
        [[1, 2, 3], [4, 5, 6], [7], [8], [9]]
    """
    step = first
    while step <= last:
        end = step + size - 1
        is_free = end <= last and all((end - 1) // n == (step - 1) // n for n in every)
        steps = range(step, end + 1) if is_free else range(step, step + 1)
        yield steps
        step = steps.stop
