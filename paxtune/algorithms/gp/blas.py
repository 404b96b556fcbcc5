import contextlib
import functools
import threading
from collections.abc import Iterator

from threadpoolctl import ThreadpoolController

_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits linear algebra to one thread, for one caller at a time.

    Threads would wait actively for small products, and their number would change the last digits.
    The limit holds for the whole process, hence the lock.
    """
    with _one_at_a_time, _libraries().limit(limits=1, user_api='blas'):
        yield


@functools.cache
def _libraries() -> ThreadpoolController:
    """Finds the libraries once: that takes milliseconds."""
    # Linear algebra of SciPy has a library of its own, which has to be loaded before.
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()
