import numpy as np

from trainer.inputs.base import Input
from trainer.inputs.tokens.vocabulary import Vocabulary, vocabulary_at
from trainer.symbolic.component import require_positive


class VocabularyInput(Input):
    """Base of inputs with rows of token ids of a vocabulary.

    Attributes:
        sequence_length: tokens in a row.
        vocabulary: '' for bytes; a directory with a `tokenizer.json`, or that file; or a
            SentencePiece model.
    """

    sequence_length: int
    vocabulary: str = ''

    def check(self) -> None:
        super().check()
        require_positive(self, 'sequence_length')

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._vocabulary().vocab_size

    def vocabulary_name(self) -> str:
        return self._vocabulary().fingerprint

    @property
    def start_id(self) -> int:
        return self._vocabulary().bos_id

    def text_of(self, ids: np.ndarray, key: str) -> str:
        return self._vocabulary().decode(ids)

    def _vocabulary(self) -> Vocabulary:
        return vocabulary_at(self.vocabulary)
