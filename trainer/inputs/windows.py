"""Batches of windows over a stream of bytes, each addressed by its index."""

import dataclasses
from typing import Any

import jax
import numpy as np

from trainer.errors import UserError
from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.language import language_spec
from trainer.inputs.permutation import Permutation, random_words


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text that is held in memory.

    Attributes:
        data: its bytes, uint8 [N], read-only: all inputs of a process share one copy.
        fingerprint: SHA-256 of what was read.
    """

    data: np.ndarray
    fingerprint: str


def corpus_of(text: bytes, fingerprint: str) -> Corpus:
    """A corpus of the given bytes."""
    return Corpus(np.frombuffer(text, np.uint8), fingerprint)


class WindowInput(Input):
    """Language model batches of windows of `sequence_length` bytes; a byte is its own id.

    A training batch is a pure function of the seed and the number of the batch. In each epoch
    the windows tile the text from a drawn offset, and are visited in a drawn order, each once;
    the hosts take turns. Evaluation reads the text once, in order: every byte but the very first
    is a label exactly once. Which windows make a step does not depend on the number of hosts.

    Attributes:
        sequence_length: tokens in a row.
        input_random_seed: draws the order of the windows. Not used in evaluation.
    """

    sequence_length: int
    input_random_seed: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._batch = 0
        self._corpus: Corpus | None = None

    def check(self) -> None:
        super().check()
        if self.sequence_length < 1:
            raise ValueError(f'sequence_length must be at least 1: {self.sequence_length}')

    @property
    def vocab_size(self) -> int:
        """Number of token ids: the 256 bytes."""
        return 256

    def vocabulary_name(self) -> str:
        return 'plain bytes'

    def read(self) -> Corpus:
        """Reads the text.

        Raises:
            UserError: there is none.
        """
        raise NotImplementedError(type(self).__name__)

    def corpus(self) -> Corpus:
        """The text. Read once."""
        if self._corpus is None:
            self._corpus = self.read()
        return self._corpus

    def prepare(self) -> None:
        if self._num_windows() < 1:
            raise UserError(
                f'a text of {len(self.corpus().data)} bytes is too small for sequence_length '
                f'{self.sequence_length}: give it more text, or shorten the sequence'
            )

    def fingerprint(self) -> str:
        return self.corpus().fingerprint

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        return language_spec(self.batch_size, self.sequence_length)

    def get_next(self) -> Batch:
        first = (self._batch * self.num_hosts + self.infeed_host_index) * self.batch_size
        index = np.arange(first, first + self.batch_size)
        if self.is_training:
            batch = self._batch_at(self._training_starts(index))
        else:
            step = self._batch * self.num_hosts * self.batch_size
            if step >= self._num_windows():
                raise EndOfData
            batch = self._batch_at(index * self.sequence_length)
        self._batch += 1
        return batch

    def reset(self) -> None:
        self._batch = 0

    def get_position(self) -> dict[str, Any]:
        return {'batch': self._batch, 'fingerprint': self.fingerprint()}

    def set_position(self, position: dict[str, Any]) -> None:
        self.refuse_other_data(position)
        self._batch = int(position['batch'])

    def _num_windows(self) -> int:
        size, length = len(self.corpus().data), self.sequence_length
        if self.is_training:
            return size // length - 1  # One less than would fit, so that any offset leaves room.
        return max(0, -(-(size - 1) // length))

    def _training_starts(self, index: np.ndarray) -> np.ndarray:
        """Where the windows of the given indices, counted over all epochs, begin."""
        epoch, window = np.divmod(index, self._num_windows())
        starts = np.empty_like(index)
        for e in range(epoch[0], epoch[-1] + 1):
            chosen = Permutation(self._num_windows(), self.input_random_seed, e)(window[epoch == e])
            offset = int(random_words(1, self.input_random_seed, e)[0] % self.sequence_length)
            starts[epoch == e] = chosen * self.sequence_length + offset
        return starts

    def _batch_at(self, starts: np.ndarray) -> Batch:
        data = self.corpus().data
        # Labels are the bytes after the ids. What lies beyond the text weighs nothing.
        at = starts[:, None] + np.arange(self.sequence_length + 1)
        window = data.take(at, mode='clip').astype(np.int32)
        weights = (at[:, 1:] < len(data)).astype(np.float32)
        there = weights.astype(np.int32)
        return {
            'ids': window[:, :-1] * there,
            'labels': window[:, 1:] * there,
            'weights': weights,
            'label_bytes': weights.copy(),
        }
