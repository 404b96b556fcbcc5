"""The examples of a training input, any number at a time."""

from typing import Any

import numpy as np

from trainer.inputs.base import Batch, Input

_BATCHES_BETWEEN_POSITIONS = 32
"""To take a position can cost as much as to read some batches, and so can to read them again."""


class Examples:
    """The examples of a training input, which reads them by whole batches, one after another.

    A position is one that the input took before some recent batch, how many batches were read
    since, and how much of the last was taken: those batches are read again. So positions are no
    larger than the input's own, and exact.

    Attributes:
        data: the input.
    """

    def __init__(self, data: Input) -> None:
        self.data = data
        self._before: dict[str, Any] | None = None  # The position that others are counted from.
        self._since = 0  # Batches read since.
        self._taken = 0  # Examples taken of the last of them.
        self._batch: Batch = {}

    def take(self, count: int) -> Batch:
        """The next `count` examples, at least one, by feature name."""
        parts: list[Batch] = []
        while count:
            if self._taken == self._there:
                self._read()
            end = min(self._taken + count, self._there)
            parts.append({name: rows[self._taken : end] for name, rows in self._batch.items()})
            count -= end - self._taken
            self._taken = end
        return {name: np.concatenate([part[name] for part in parts]) for name in self._batch}

    def reset(self) -> None:
        """Goes back to the first example."""
        self.data.reset()
        self._start(None)

    def get_position(self) -> dict[str, Any]:
        """Where `take` continues, as JSON data."""
        before = self.data.get_position() if self._before is None else self._before
        return {'before': before, 'batches': self._since, 'taken': self._taken}

    def set_position(self, position: dict[str, Any]) -> None:
        """Continues exactly where `get_position` was taken.

        Raises:
            UserError: the position was taken in other data.
        """
        self.data.set_position(position['before'])
        self._start(position['before'])
        for _ in range(int(position['batches'])):
            self._batch = self.data.get_next()
            self._since += 1
        self._taken = int(position['taken'])

    @property
    def _there(self) -> int:
        """Examples in the batch that was read last."""
        return self.data.batch_size if self._since else 0

    def _start(self, before: dict[str, Any] | None) -> None:
        self._before, self._since, self._taken = before, 0, 0

    def _read(self) -> None:
        if self._before is None or self._since == _BATCHES_BETWEEN_POSITIONS:
            self._start(self.data.get_position())
        self._batch = self.data.get_next()
        self._since += 1
        self._taken = 0
