from typing import Any

import numpy as np

from trainer.inputs.base import Batch, Input

_BATCHES_BETWEEN_POSITIONS = 32
"""Batches between two positions of the input: a position can cost as much as reading batches."""


class Examples:
    """The examples of a training input that reads whole batches.

    A position consists of an earlier position of the input, the number of batches read since, and
    the number of examples taken of the last one. Restoring reads these batches again. So positions
    are exact, and as small as those of the input.
    """

    def __init__(self, data: Input) -> None:
        self.data = data
        self._before: dict[str, Any] | None = None  # An earlier position of the input.
        self._since = 0  # Batches read since then.
        self._taken = 0  # Examples taken of the last batch.
        self._batch: Batch = {}

    def take(self, count: int) -> Batch:
        """The next `count` (at least one) examples, by feature name."""
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
        """The position of the next example, as JSON data."""
        before = self.data.get_position() if self._before is None else self._before
        return {'before': before, 'batches': self._since, 'taken': self._taken}

    def set_position(self, position: dict[str, Any]) -> None:
        """Continues at a result of `get_position`; raises UserError if it is of other data."""
        self.data.set_position(position['before'])
        self._start(position['before'])
        for _ in range(int(position['batches'])):
            self._batch = self.data.get_next()
            self._since += 1
        self._taken = int(position['taken'])

    @property
    def _there(self) -> int:
        return self.data.batch_size if self._since else 0

    def _start(self, before: dict[str, Any] | None) -> None:
        self._before, self._since, self._taken = before, 0, 0

    def _read(self) -> None:
        if self._before is None or self._since == _BATCHES_BETWEEN_POSITIONS:
            self._start(self.data.get_position())
        self._batch = self.data.get_next()
        self._since += 1
        self._taken = 0
