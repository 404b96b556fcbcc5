"""A function whose trials only sleep."""

import time
from collections.abc import Iterator

SECONDS, STEPS = 0.05, 4


def sleeping(x: float) -> Iterator[dict[str, float]]:
    """Yields a measurement after each step."""
    for step in range(1, STEPS + 1):
        time.sleep(SECONDS)
        yield {'objective': x / step}
