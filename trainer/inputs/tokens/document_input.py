from typing import Any

import jax

from trainer.inputs.base import Batch, EndOfData
from trainer.inputs.tokens.language import batch_of_segments, language_spec
from trainer.inputs.tokens.rows import RowPacker
from trainer.inputs.tokens.vocabulary_input import VocabularyInput


class DocumentInput(VocabularyInput):
    """Base of inputs that make rows of token ids out of documents.

    A document ends with the vocabulary's end id. `ids` are the labels shifted by one. Before the
    first label of each segment comes the vocabulary's id for a beginning: 0 for bytes. In
    evaluation all hosts read everything, in order, and take their rows in turn, so that they end
    together.

    Attributes:
        packing: puts several documents into a row, with `segment_ids` and `segment_pos`.
        input_random_seed: draws the order of training data.
    """

    packing: bool = False
    input_random_seed: int = 0

    @property
    def positions_are_global(self) -> bool:
        return not self.is_training  # In training, each host reads its own documents.

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        return language_spec(self.batch_size, self.sequence_length, packed=self.packing)

    def _take_batch(self, rows: RowPacker[Any]) -> Batch:
        if self.is_training:
            own = rows.take(self.batch_size)
        else:
            step = rows.take(self.batch_size * self.num_hosts)
            if not step:
                raise EndOfData
            first = self.infeed_host_index * self.batch_size
            own = step[first : first + self.batch_size]
        known = self._vocabulary()
        return batch_of_segments(own, self.element_spec(), known.bytes_per_id, known.bos_id)
