import hashlib
from typing import Any

import numpy as np

from trainer.inputs.libraries import libraries
from trainer.inputs.tokens.vocabulary import PAD_ID, bytes_per_piece


def bytes_per_id(vocabulary: Any) -> np.ndarray | None:
    """UTF-8 bytes of text of each id, float32; None for unknown kinds of vocabularies."""
    seqio = libraries().seqio
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return bytes_per_piece(vocabulary.tokenizer)
    if isinstance(vocabulary, seqio.ByteVocabulary):
        sizes = np.zeros(vocabulary.vocab_size, np.float32)
        sizes[vocabulary.encode('\0')[0] :][:256] = 1
        return sizes
    return None


def name_of(vocabulary: Any) -> str:
    """Names a vocabulary: equal names, equal ids."""
    if isinstance(vocabulary, libraries().seqio.SentencePieceVocabulary):
        return hashlib.sha256(vocabulary.sp_model).hexdigest()
    return f'{type(vocabulary).__qualname__} {vocabulary.vocab_size}'


def text(vocabulary: Any, ids: np.ndarray) -> str:
    """The text of ids up to the first end of an example, without padding."""
    return str(vocabulary.decode([i for i in ids.tolist() if i != PAD_ID]))
