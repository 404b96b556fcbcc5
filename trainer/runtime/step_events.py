"""Steps of a run, as they happen: for displays, which change nothing."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar

_listener: ContextVar[Callable[[int, Mapping[str, float]], None] | None]
_listener = ContextVar('step_listener', default=None)


@contextlib.contextmanager
def listening(listener: Callable[[int, Mapping[str, float]], None]) -> Iterator[None]:
    """Context manager in which a function hears of the steps of the runs of this thread.

    It gets the step that has begun, the last one of an execution of several, and the training
    metrics of an earlier one, if any.

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
    """Passes a step to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(step, metrics or {})
