import contextlib
import functools
import threading
from collections.abc import Iterator

import numpy as np
from threadpoolctl import ThreadpoolController

_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits linear algebra to one thread, for one caller at a time.

    Threads would wait actively for small products, and their number would change the last digits.
    The limit holds for the whole process, hence the lock.
    """
    _keep_freed_memory()
    with _one_at_a_time, _libraries().limit(limits=1, user_api='blas'):
        yield


@functools.cache
def _libraries() -> ThreadpoolController:
    """Finds the libraries once: that takes milliseconds."""
    # Linear algebra of SciPy has a library of its own, which has to be loaded before.
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()


@functools.cache
def _keep_freed_memory() -> None:
    """Lets the allocator keep freed memory for the next arrays.

    A suggestion makes thousands of arrays of up to a megabyte. The allocator of glibc returns the
    memory of each to the system, which clears it again: a third of the time of a suggestion. It
    keeps twice the size of the largest array that was freed so far, up to 32 MB (M_MMAP_THRESHOLD
    of mallopt). So one large array is freed; its memory is never touched.
    """
    np.empty(2**24, np.uint8)
