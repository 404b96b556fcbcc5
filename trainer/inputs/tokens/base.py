from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

PAD_ID = 0
"""The id at positions of padding, which have no weight, and are in no segment.

In some vocabularies it is also a token, so only weights and segments mark padding.
"""


class Vocabulary:
    """Token ids of text.

    Attributes:
        vocab_size: number of ids.
        eos_id: the id that ends a document.
        bos_id: the id before the first token of a document in `ids`.
        pad_id: the id that is no text; that of padding in bytes and SentencePiece models.
        bytes_per_id: UTF-8 bytes of text of each id, float32 [vocab_size]; 0 for special ids.
        fingerprint: names the vocabulary: equal fingerprints, equal ids.
        special_tokens: texts of special tokens by name, such as `bos_token`.
        chat_template: the Jinja template of conversations; '' where there is none.
    """

    vocab_size: int
    eos_id: int
    bos_id: int = PAD_ID
    pad_id: int = PAD_ID
    bytes_per_id: np.ndarray
    fingerprint: str
    special_tokens: Mapping[str, str] = MappingProxyType({})
    chat_template: str = ''

    @property
    def eos_ids(self) -> list[int]:
        """The ids that end a generated text."""
        return [self.eos_id]

    @property
    def prefix(self) -> list[int]:
        """The ids before the first token of a prompt."""
        return [self.bos_id]

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, int32 [N], without an end of document."""
        raise NotImplementedError(type(self).__name__)

    def encode_parts(self, parts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each part of a text; no token stands in two parts."""
        return [self.encode(part) for part in parts]

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, int [N], without special ids."""
        raise NotImplementedError(type(self).__name__)

    def for_seqio(self) -> Any:
        """The same vocabulary as an object of SeqIO. Imports TensorFlow."""
        raise NotImplementedError(type(self).__name__)
