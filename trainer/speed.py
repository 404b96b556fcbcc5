"""How fast training goes."""

import contextlib
import time
from collections.abc import Iterator


class Speed:
    """Tokens a second of training, without compiling, evaluating and saving.

    Example:
        >>> speed = Speed()
        >>> speed.start()
        >>> speed.count(1024)
        >>> speed.per_second() > 0
        True
    """

    def __init__(self) -> None:
        self.counted = 0
        self._started = 0.0
        self._paused = 0.0

    def start(self) -> None:
        """Starts the clock, after the first step has been compiled."""
        self._started, self._paused, self.counted = time.perf_counter(), 0.0, 0

    def count(self, tokens: int) -> None:
        """Counts the tokens of a step."""
        self.counted += tokens

    def per_second(self) -> float:
        """Tokens a second since the start."""
        return self.counted / max(time.perf_counter() - self._started - self._paused, 1e-9)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside the `with` block does not count."""
        entered = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - entered
