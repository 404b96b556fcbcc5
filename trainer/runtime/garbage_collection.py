import contextlib
import ctypes
import gc
from collections.abc import Iterator

_is_starting = False


def begin_start_up() -> None:
    """Pauses the garbage collector while a command imports, until `end_start_up`.

    Imports make hundreds of thousands of objects, and hardly any garbage. Collections that
    look at all of them take a seventh of the time of a start.
    """
    global _is_starting
    _is_starting = gc.isenabled()
    gc.disable()


def end_start_up() -> None:
    """Resumes the garbage collector, which looks at no object from before.

    Without `begin_start_up`, it does nothing.
    """
    global _is_starting
    if _is_starting:
        gc.freeze()
        gc.enable()
        _is_starting = False


class GcSchedule:
    """Context manager that collects garbage at an interval of steps, and at no other time.

    By default Python collects at times that differ from host to host. Each pause of one host then
    pauses all hosts that wait for it.

    Example:
        >>> with GcSchedule(10) as garbage:
        ...     garbage.after(20)
        ...     gc.isenabled()
        False
    """

    def __init__(self, interval_steps: int | None) -> None:
        """Makes a schedule; None leaves it to Python."""
        self._interval, self._held = interval_steps, contextlib.ExitStack()

    def __enter__(self) -> 'GcSchedule':
        if self._interval:
            self._held.enter_context(gc_paused())
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def after(self, step: int) -> None:
        """Collects garbage if the step is due."""
        if self._interval and step % self._interval == 0:
            gc.collect()


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Context manager that pauses the garbage collector while thousands of objects are made.

    Each collection looks at all objects of the process, so the collections that new objects
    trigger take longer than making the objects.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def free_compilations() -> None:
    """Frees the memory of programs that are no longer used.

    JAX keeps its traces, and glibc the memory that compilations freed: several MB for each
    program. Functions that are still in use are traced again at their next call.
    """
    import jax

    jax.clear_caches()
    gc.collect()
    # Other C libraries have no such function.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
