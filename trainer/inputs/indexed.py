"""Inputs whose examples are addressed by their index."""

from typing import Any

import numpy as np

from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.permutation import Permutation


class IndexedInput(Input):
    """Batches of examples, each of which can be read by its index, in any order.

    A training batch is a pure function of the seed and the number of the batch: in each epoch the
    examples are visited in a drawn order, each once; the hosts take turns. Evaluation reads them
    once, in order. Which examples make a step does not depend on the number of hosts, and a
    position is a number of examples: so it holds for other hosts and batch sizes, too.

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

    def num_examples(self) -> int:
        """Examples in an epoch; at least one, or `prepare` raises UserError."""
        raise NotImplementedError(type(self).__name__)

    def train_batch(self, index: np.ndarray) -> Batch:
        """Training examples.

        Args:
            index: int64 [B], counted over all epochs: see `drawn`.
        """
        raise NotImplementedError(type(self).__name__)

    def eval_batch(self, index: np.ndarray) -> Batch:
        """Evaluation examples.

        Args:
            index: int64 [B]; those from `num_examples()` on are to be zeros.
        """
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
        return {
            'batch': self._batch,
            'examples': self._num_read,
            'fingerprint': self.fingerprint(),
        }

    def set_position(self, position: dict[str, Any]) -> None:
        self.validate_position(position)
        self._go_to(int(position['batch']), int(position['examples']))

    def drawn(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The epochs, and the examples in them, of training examples counted over all epochs."""
        epoch, place = np.divmod(index, self.num_examples())
        example = np.empty_like(index)
        for e in range(epoch[0], epoch[-1] + 1):
            order = Permutation(self.num_examples(), self.input_random_seed, e)
            example[epoch == e] = order(place[epoch == e])
        return epoch, example

    def _go_to(self, batch: int, examples: int) -> None:
        """Goes on after so many batches, for which all hosts read so many examples."""
        self._batch, self._num_read = batch, examples
