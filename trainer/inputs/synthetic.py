"""Language model batches of random ids, for benchmarks."""

import hashlib

import jax
import numpy as np

from trainer.inputs.base import Batch
from trainer.inputs.indexed import IndexedInput
from trainer.inputs.permutation import random_words_at
from trainer.inputs.tokens.language import language_spec


class SyntheticLmInput(IndexedInput):
    """Rows of uniformly random ids, equal on every machine. The best loss is log(vocab_size).

    As Pax's SyntheticLmData.

    Attributes:
        sequence_length: tokens in a row.
        vocab_size: number of token ids; 0 is padding and not drawn.
        num_rows: rows in an epoch of training, and in an evaluation.
    """

    sequence_length: int
    vocab_size: int
    num_rows: int = 1024

    def check(self) -> None:
        super().check()
        for name, least in (('sequence_length', 1), ('vocab_size', 2), ('num_rows', 1)):
            if self.sym_getattr(name) < least:
                raise ValueError(f'{name} must be at least {least}: {self.sym_getattr(name)}')

    def fingerprint(self) -> str:
        what = f'{self.sequence_length} {self.vocab_size} {self.num_rows} {self.is_training}'
        return hashlib.sha256(what.encode()).hexdigest()

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        return language_spec(self.batch_size, self.sequence_length, label_bytes=False)

    def num_examples(self) -> int:
        return self.num_rows

    def train_batch(self, index: np.ndarray) -> Batch:
        _, row = self.drawn(index)
        return self._rows(row, np.ones(len(row), bool))

    def eval_batch(self, index: np.ndarray) -> Batch:
        return self._rows(index, index < self.num_rows)

    def _rows(self, row: np.ndarray, there: np.ndarray) -> Batch:
        length = self.sequence_length + 1
        words = random_words_at(row[:, None] * length + np.arange(length), int(self.is_training))
        tokens = (1 + words % np.uint64(self.vocab_size - 1)).astype(np.int32) * there[:, None]
        weights = np.broadcast_to(there[:, None], tokens[:, 1:].shape).astype(np.float32)
        return {'ids': tokens[:, :-1], 'labels': tokens[:, 1:], 'weights': weights}
