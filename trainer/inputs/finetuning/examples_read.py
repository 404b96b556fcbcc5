import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np

from trainer.inputs.finetuning.chat_template import DATE, ChatTemplate
from trainer.inputs.finetuning.example_tokens import ExampleEncoder
from trainer.inputs.finetuning.records import record_files, records
from trainer.inputs.tokens.vocabulary import vocabulary_at
from trainer.runtime.data_paths import data_path, open_data, version
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError, prefixed

Cut = Literal['right', 'left', 'drop']


@dataclasses.dataclass(frozen=True)
class ReadExamples:
    """The tokens of all examples of some files, in memory.

    Attributes:
        ids: int32, one example after the other.
        is_answer: bool, for each id.
        ends: int64 [N], the end of each example in `ids`.
        fingerprint: equal fingerprints, equal tokens.
    """

    ids: np.ndarray
    is_answer: np.ndarray
    ends: np.ndarray
    fingerprint: str

    def slices(self, length: int, cut: Cut) -> tuple[np.ndarray, np.ndarray]:
        """The beginning and the end of each example in rows of `length` labels.

        Both are equal for examples that are left out: those without an answer in the row, and with
        'drop' those that are too long.
        """
        begins = np.concatenate([[0], self.ends[:-1]]).astype(np.int64)
        ends = self.ends.copy()
        is_long = ends - begins > length + 1  # The first token is no label.
        if cut == 'left':
            begins = np.maximum(begins, ends - length - 1)
        elif cut == 'right':
            ends = np.minimum(ends, begins + length + 1)
        answers = np.concatenate([[0], np.cumsum(self.is_answer)])
        is_out = answers[ends] == answers[np.minimum(begins + 1, ends)]
        if cut == 'drop':
            is_out |= is_long
        return begins, np.where(is_out, begins, ends)


def encoder_of(
    vocabulary: str,
    chat_template: str = '',
    date: str = DATE,
    as_chat: bool = False,
    fields: Sequence[str] = ('prompt', 'answer', 'messages'),
) -> ExampleEncoder:
    """Makes the encoder of examples for fields of an input.

    Args:
        vocabulary: of a text input; a directory may have a chat template.
        chat_template: a file with another one.
        date: the day that the template prints; a fixed one by default.
        as_chat: texts of a pair are messages.
        fields: the names of the prompt, the answer and the messages.

    Raises:
        UserError: a file cannot be read.
    """
    known = vocabulary_at(vocabulary)
    source = known.chat_template
    if chat_template:
        try:
            with open_data(data_path(chat_template)) as opened:
                source = opened.read().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f'chat_template: {chat_template} cannot be read ({error})') from error
    template = ChatTemplate(source, known.special_tokens, date) if source else None
    return ExampleEncoder(known, template, as_chat, *fields)


def read_examples(paths: Sequence[str], encoder: ExampleEncoder) -> ReadExamples:
    """Reads the examples of files; a process reads equal files once.

    Raises:
        UserError: there is no file; or a file or an example is damaged. The message names the line.
    """
    files = record_files(paths)
    return _read(tuple((file, version(file)) for file in files), encoder)


@functools.lru_cache(maxsize=8)
def _read(files: tuple[tuple[JobPath, str], ...], encoder: ExampleEncoder) -> ReadExamples:
    # Versions are keys of the cache: a changed file is read again.
    found = []
    for file, _ in files:
        for where, record in records(file):
            with prefixed(where):
                found.append(encoder.encoded(record))
    if not found:
        raise UserError('paths: the files have no example')
    ids = np.concatenate([tokens.ids for tokens in found])
    is_answer = np.concatenate([tokens.is_answer for tokens in found])
    ends = np.cumsum([len(tokens.ids) for tokens in found])
    digest = hashlib.sha256(encoder.vocabulary.fingerprint.encode())
    for array in (ids, is_answer, ends):
        digest.update(array.tobytes())
    return ReadExamples(ids, is_answer, ends, digest.hexdigest())
