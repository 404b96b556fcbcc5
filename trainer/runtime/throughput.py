import contextlib
import time
from collections.abc import Iterator

from trainer.runtime import wall_clock

THROUGHPUT_METRICS = (
    'train/tokens_per_second',
    'train/steps_per_second',
    'train/mfu',
    'train/goodput',
    'eval_steps_per_second',
    'decode_steps_per_second',
    'spent_seconds',
)
"""Metrics that depend on the machine and its load: they differ between equal runs."""


RESOURCE_METRICS = ('spent_tokens', 'spent_flops', 'spent_seconds')
"""Metrics that report the resources used since step 0."""


class Throughput:
    """Steps and tokens per second, without the pauses between them.

    Example:
        >>> throughput = Throughput()
        >>> throughput.start()
        >>> throughput.rates()
        {}
        >>> throughput.count(1024)
        >>> sorted(throughput.rates())
        ['steps_per_second', 'tokens_per_second']
    """

    def __init__(self) -> None:
        # The clock of a packed run counts its share of the steps.
        clock = wall_clock.current()
        self._read = time.perf_counter if clock is None else clock.read
        self._before, self._steps = 0.0, 0
        self.start()

    def start(self) -> None:
        """Restarts the clock, for example after the first step."""
        if self._steps:
            self._before += self._elapsed()
        self._started, self._paused = self._read(), 0.0
        self._steps = self._tokens = 0

    def count(self, tokens: int = 0, steps: int = 1) -> None:
        """Counts steps and their tokens."""
        self._steps += steps
        self._tokens += tokens

    def rates(self) -> dict[str, float]:
        """Counts since the start, per second; empty without any."""
        seconds = max(self._elapsed(), 1e-9)
        counted = {'steps': self._steps, 'tokens': self._tokens}
        return {f'{name}_per_second': n / seconds for name, n in counted.items() if n}

    def total_seconds(self) -> float:
        """Seconds of all steps ever counted; invalid while paused."""
        return self._before + (self._elapsed() if self._steps else 0.0)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context manager whose time does not count."""
        entered = self._read()
        try:
            yield
        finally:
            self._paused += self._read() - entered

    def _elapsed(self) -> float:
        return self._read() - self._started - self._paused
