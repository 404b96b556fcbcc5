import functools
import hashlib
import importlib
from typing import Any

import numpy as np

from trainer.inputs.libraries import libraries
from trainer.inputs.tokens.base import PAD_ID as PAD_ID
from trainer.inputs.tokens.base import Vocabulary as Vocabulary
from trainer.inputs.tokens.tokenizer import TokenizerVocabulary, is_tokenizer
from trainer.runtime.data_paths import data_path, local_copy, open_data
from trainer.symbolic.errors import UserError


class ByteVocabulary(Vocabulary):
    """UTF-8 bytes after three special ids, as in ByT5: 0 padding, 1 end, 2 unknown (never used).

    Example:
        >>> ByteVocabulary().encode('a b')
        array([100,  35, 101], dtype=int32)
    """

    _SPECIAL = 3

    def __init__(self) -> None:
        self.vocab_size = self._SPECIAL + 256
        self.eos_id = 1
        self.bytes_per_id = np.ones(self.vocab_size, np.float32)
        self.bytes_per_id[: self._SPECIAL] = 0
        self.fingerprint = 'bytes'

    def encode(self, text: str) -> np.ndarray:
        # JSON can contain half of a surrogate pair, which UTF-8 cannot: it becomes '?'.
        encoded = np.frombuffer(text.encode('utf-8', errors='replace'), np.uint8)
        return encoded.astype(np.int32) + self._SPECIAL

    def decode(self, ids: np.ndarray) -> str:
        known = ids[(ids >= self._SPECIAL) & (ids < self.vocab_size)] - self._SPECIAL
        return known.astype(np.uint8).tobytes().decode(errors='replace')

    def for_seqio(self) -> Any:
        return libraries().seqio.ByteVocabulary()


class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model. It must use id 0 for padding and have an id that ends a document.

    Bytes are counted in the normalized text, which may have a space before its first word. An
    unknown piece counts as one byte: prefer models with byte fallback.
    """

    def __init__(self, path: str):
        """Loads a model; raises ValueError for another file, or other special ids."""
        with open_data(data_path(path)) as file:
            model = file.read()
        self._path = path
        self._processor = _processor(model)
        if self._processor.pad_id() != PAD_ID or self._processor.eos_id() < 0:
            raise ValueError(
                f'its padding id is {self._processor.pad_id()} and its end-of-sentence id '
                f'{self._processor.eos_id()}; train it with --pad_id=0 --eos_id=1 --unk_id=2'
            )
        self.vocab_size = self._processor.vocab_size()
        self.eos_id = self._processor.eos_id()
        self.bytes_per_id = bytes_per_piece(self._processor)
        self.fingerprint = hashlib.sha256(model).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        text = text.encode('utf-8', errors='replace').decode()
        return np.array(self._processor.encode(text), np.int32)

    def decode(self, ids: np.ndarray) -> str:
        known = ids[(ids >= 0) & (ids < self.vocab_size)]
        return str(self._processor.decode(known.tolist()))

    def for_seqio(self) -> Any:
        path = str(local_copy(data_path(self._path)))
        return libraries().seqio.SentencePieceVocabulary(path)


@functools.lru_cache(maxsize=8)
def vocabulary_at(path: str) -> Vocabulary:
    """The vocabulary of a setting.

    A process reads each path once, so that all batches of a run have ids of one vocabulary. A file
    that changes is seen by the next process, which refuses to resume with another vocabulary.

    Args:
        path: '' for bytes; a directory with a `tokenizer.json`, or that file; or a SentencePiece
            model.

    Raises:
        UserError: there is no valid vocabulary at the path.
    """
    if not path:
        return ByteVocabulary()
    try:
        return TokenizerVocabulary(path) if is_tokenizer(path) else SentencePieceVocabulary(path)
    except OSError as error:
        reason = f'it cannot be read ({error.strerror})'
    except ValueError as error:
        reason = str(error)
    raise UserError(
        f'vocabulary {path!r}: {reason}. Set it to a directory with a tokenizer.json, to the path '
        "of a SentencePiece model, or to '' for bytes."
    )


def bytes_per_piece(processor: Any) -> np.ndarray:
    """UTF-8 bytes of text of each piece of a SentencePiece model, float32."""

    def size(piece_id: int) -> int:
        if processor.is_control(piece_id) or processor.is_unused(piece_id):
            return 0
        if processor.is_byte(piece_id) or processor.is_unknown(piece_id):
            return 1
        return len(processor.id_to_piece(piece_id).replace('▁', ' ').encode())

    return np.array([size(piece_id) for piece_id in range(processor.vocab_size())], np.float32)


def _processor(model: bytes) -> Any:
    # Imported here: it is a C++ library that few processes need.
    sentencepiece = importlib.import_module('sentencepiece')
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ValueError('it is not a SentencePiece model') from error
    return processor
