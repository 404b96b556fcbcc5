"""Memory that the C library keeps for itself."""

import ctypes
import functools
from collections.abc import Callable


def trim() -> None:
    """Returns freed memory to the operating system.

    A compilation needs some hundred MB, in many threads. glibc keeps most of it after it is freed,
    so a process that compiles again and again would grow. Other C libraries have no such function.
    """
    if (malloc_trim := _malloc_trim()) is not None:
        malloc_trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return getattr(ctypes.CDLL(None), 'malloc_trim', None)
    except (OSError, TypeError):  # Windows has no library of the whole process.
        return None
