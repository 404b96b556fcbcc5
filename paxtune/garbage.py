"""Python's search for garbage, put off."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collected_later() -> Iterator[None]:
    """For making thousands of objects that stay.

    Each search looks at all objects of the process, so the searches that new objects set off take
    longer than to make the objects.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()
