"""Steps of a run, as they happen: for displays, which change nothing."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TypeAlias

StepListener: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""A function of the step that has begun, and of the training metrics of an earlier one, if any."""

_listener: ContextVar[StepListener | None] = ContextVar('step_listener', default=None)


@contextlib.contextmanager
def listening(listener: StepListener) -> Iterator[None]:
    """Context manager in which `listener` hears of the steps of the runs of this thread.

    Example:
        >>> with listening(lambda step, metrics: print(step, metrics)):
        ...     notify(8, {'train/loss': 2.5})
        8 {'train/loss': 2.5}
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def notify(step: int, metrics: Mapping[str, float] | None = None) -> None:
    """Passes a step to the listener, if there is one. The first one means that it is compiled."""
    listener = _listener.get()
    if listener is not None:
        listener(step, metrics or {})
