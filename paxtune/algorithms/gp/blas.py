import contextlib
import threading
from collections.abc import Iterator

from threadpoolctl import threadpool_limits

_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits linear algebra to one thread, for one caller at a time.

    Threads would wait actively for small products, and their number would change the last digits.
    The limit holds for the whole process, hence the lock.
    """
    with _one_at_a_time, threadpool_limits(1, user_api='blas'):
        yield
