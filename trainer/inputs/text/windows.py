import dataclasses

import jax
import numpy as np

from trainer.inputs.base import Batch
from trainer.inputs.indexed import IndexedInput
from trainer.inputs.permutation import random_words
from trainer.inputs.tokens.language import language_spec
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import UserError


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text in memory.

    Attributes:
        data: its bytes, uint8 [N], read-only: all inputs of a process share one copy.
        fingerprint: SHA-256 of the files.
    """

    data: np.ndarray
    fingerprint: str


def corpus_of(text: bytes, fingerprint: str) -> Corpus:
    """A corpus of the given bytes."""
    return Corpus(np.frombuffer(text, np.uint8), fingerprint)


class WindowInput(IndexedInput):
    """Language model batches of windows of `sequence_length` bytes; the ids are the bytes.

    In each epoch of training the windows tile the text from a random offset, in random order.
    Evaluation reads the text once, in order: every byte but the first is a label exactly once.

    Attributes:
        sequence_length: tokens in a row.
    """

    sequence_length: int

    def _on_bound(self) -> None:
        super()._on_bound()
        self._corpus: Corpus | None = None

    def check(self) -> None:
        super().check()
        require_positive(self, 'sequence_length')

    @property
    def vocab_size(self) -> int:
        """Number of token ids: the 256 bytes."""
        return 256

    def vocabulary_name(self) -> str:
        return 'plain bytes'

    def read(self) -> Corpus:
        """Reads the text; raises UserError if there is no text."""
        raise NotImplementedError(type(self).__name__)

    def corpus(self) -> Corpus:
        """The text, read once."""
        if self._corpus is None:
            self._corpus = self.read()
        return self._corpus

    def prepare(self) -> None:
        if self.num_examples() < 1:
            raise UserError(
                f'a text of {len(self.corpus().data)} bytes is too small for sequence_length '
                f'{self.sequence_length}: give it more text, or shorten the sequence'
            )

    def fingerprint(self) -> str:
        return self.corpus().fingerprint

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        return language_spec(self.batch_size, self.sequence_length)

    def num_examples(self) -> int:
        size, length = len(self.corpus().data), self.sequence_length
        if self.is_training:
            return size // length - 1  # Minus 1, so that the windows fit at any offset.
        return max(0, -(-(size - 1) // length))

    def train_batch(self, index: np.ndarray) -> Batch:
        epoch, window = self.drawn(index)
        offsets = {
            e: int(random_words(1, self.input_random_seed, e)[0] % self.sequence_length)
            for e in range(epoch[0], epoch[-1] + 1)
        }
        offset = np.array([offsets[e] for e in epoch.tolist()])
        return self._batch_at(window * self.sequence_length + offset)

    def eval_batch(self, index: np.ndarray) -> Batch:
        return self._batch_at(index * self.sequence_length)

    def text_of(self, ids: np.ndarray, key: str) -> str:
        return ids.astype(np.uint8).tobytes().decode(errors='replace')

    def _batch_at(self, starts: np.ndarray) -> Batch:
        data = self.corpus().data
        # Labels are the bytes after the ids. Positions beyond the text have weight zero.
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
