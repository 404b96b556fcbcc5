from typing import Any

import numpy as np

from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.permutation import Permutation


class IndexedInput(Input):
    """Batches of examples that can be read by index, in any order.

    A training batch is a pure function of the seed and its number. Each epoch visits every example
    once, in random order; the hosts take turns. Evaluation reads the examples once, in order. The
    examples of a step do not depend on the number of hosts. A position is a number of examples, so
    it is valid for other numbers of hosts and other batch sizes, too.

    Attributes:
        input_random_seed: draws the order of the examples. Not used in evaluation.
    """

    input_random_seed: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._go_to(0, 0)

    @property
    def positions_are_global(self) -> bool:
        return True

    @property
    def has_padding(self) -> bool:
        step = self.batch_size * self.num_hosts
        ends_early = not self.is_training and self.num_examples() % step > 0
        return ends_early or super().has_padding

    def num_examples(self) -> int:
        """Examples in an epoch; at least one, or `prepare` raises UserError."""
        raise NotImplementedError(type(self).__name__)

    def train_batch(self, index: np.ndarray) -> Batch:
        """Training examples by their indices, int64 [B], over all epochs; see `drawn`."""
        raise NotImplementedError(type(self).__name__)

    def eval_batch(self, index: np.ndarray) -> Batch:
        """Evaluation examples by index, int64 [B]; zeros from `num_examples()` on."""
        raise NotImplementedError(type(self).__name__)

    def get_next(self) -> Batch:
        if not self.is_training and self._num_read >= self.num_examples():
            raise EndOfData
        first = self._num_read + self.infeed_host_index * self.batch_size
        index = np.arange(first, first + self.batch_size)
        batch = self.train_batch(index) if self.is_training else self.eval_batch(index)
        self._go_to(self._batch + 1, self._num_read + self.num_hosts * self.batch_size)
        return batch

    def reset(self) -> None:
        self._go_to(0, 0)

    def get_position(self) -> dict[str, Any]:
        return {'batch': self._batch, 'examples': self._num_read, 'fingerprint': self.fingerprint()}

    def set_position(self, position: dict[str, Any]) -> None:
        self.validate_position(position)
        self._go_to(int(position['batch']), int(position['examples']))

    def drawn(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The epochs and the examples of indices that count over all epochs."""
        epoch, place = np.divmod(index, self.num_examples())
        example = np.empty_like(index)
        for e in range(epoch[0], epoch[-1] + 1):
            order = Permutation(self.num_examples(), self.input_random_seed, e)
            example[epoch == e] = order(place[epoch == e])
        return epoch, example

    def _go_to(self, batch: int, examples: int) -> None:
        self._batch, self._num_read = batch, examples
