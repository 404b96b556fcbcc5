import datetime
from typing import Any

import jax
import numpy as np
from absl import logging

from trainer.inputs.base import Batch
from trainer.inputs.finetuning.best_fit import best_fit
from trainer.inputs.finetuning.chat_template import DATE
from trainer.inputs.finetuning.examples_read import Cut, ReadExamples, encoder_of, read_examples
from trainer.inputs.indexed import IndexedInput
from trainer.inputs.permutation import Permutation
from trainer.inputs.tokens.language import batch_of_segments, language_spec
from trainer.inputs.tokens.vocabulary_input import VocabularyInput
from trainer.symbolic.errors import UserError


class FinetuneInput(VocabularyInput, IndexedInput):
    """Examples with a prompt and an answer, or conversations; only tokens of answers have weight.

    Files have a JSON object on each line, plain or compressed by gzip, or rows of Parquet or Arrow:

        {"prompt": "1 + 1 =", "answer": " 2"}
        {"messages": [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}]}

    Texts of a pair follow each other. Conversations are rendered by the chat template of the
    vocabulary's directory; all messages of the assistant are answers. See `ExampleEncoder`.

    An example is a row. With `packing`, rows hold whole examples, packed by best fit, with
    `segment_ids` and `segment_pos`. Rows without packing have `prefix_lengths`, the tokens before
    the last answer, so that they are also prompts of `decode_inputs`. Training visits each row once
    an epoch. Evaluation has each example once, packed or not. A position is a number of rows.

    Examples are read and encoded once, and held in memory.

    Attributes:
        paths: files, patterns, and directories of data sets saved by Hugging Face's `datasets`.
        packing: puts several examples into a row.
        cut: an example that is too long loses its end ('right') or its beginning ('left'), or is
            left out ('drop'). One that loses all of its answers is left out, too. The log says
            their numbers.
        as_chat: texts of a pair are messages of the user and of the assistant.
        chat_template: a file with a Jinja template, in place of the directory's.
        date: the day that a template may print, always the same.
        prompt: the field of an example with the prompt: a text, or a list of messages.
        answer: the field with the answer.
        messages: the field with a conversation.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, 'pairs.jsonl')
        ...     _ = path.write_text('{"prompt": "1+1=", "answer": "2"}')
        ...     data = FinetuneInput(batch_size=1, sequence_length=6, paths=[str(path)])
        ...     batch = data.get_next()
        >>> batch['weights'].tolist(), data.text_of(batch['labels'][0], 'labels')
        ([[0.0, 0.0, 0.0, 0.0, 1.0, 1.0]], '1+1=2')
    """

    paths: list[str]
    packing: bool = False
    cut: Cut = 'right'
    as_chat: bool = False
    chat_template: str = ''
    date: str = DATE
    prompt: str = 'prompt'
    answer: str = 'answer'
    messages: str = 'messages'

    def _on_bound(self) -> None:
        super()._on_bound()
        self._examples: ReadExamples | None = None
        self._rows: list[list[int]] = []
        self._slices = (np.zeros(0, np.int64),) * 2

    def check(self) -> None:
        super().check()
        if not self.paths:
            raise ValueError('paths must name at least one file, pattern or directory')
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError as error:
            raise ValueError(f'date must be a day such as {DATE}: {self.date!r}') from error

    def prepare(self) -> None:
        self.num_examples()
        begins, ends = self._slices
        total, number_out = len(ends), int((begins == ends).sum())
        lengths = np.diff(self.examples().ends, prepend=0)
        number_cut = int((lengths > self.sequence_length + 1).sum())
        if number_cut or number_out:
            logging.warning(
                '%s: of %s examples, %s are longer than sequence_length %s (cut=%r), and %s are '
                'left out, since no answer would be left',
                self.sym_path or type(self).__name__,
                f'{total:,}',
                f'{number_cut:,}',
                self.sequence_length,
                self.cut,
                f'{number_out:,}',
            )

    def fingerprint(self) -> str:
        return self.examples().fingerprint

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        spec = language_spec(self.batch_size, self.sequence_length, packed=self.packing)
        if not self.packing:
            spec['prefix_lengths'] = jax.ShapeDtypeStruct((self.batch_size,), np.int32)
        return spec

    def examples(self) -> ReadExamples:
        """The tokens of the examples; raises UserError if they cannot be read."""
        if self._examples is None:
            names = (self.prompt, self.answer, self.messages)
            encoder = encoder_of(
                self.vocabulary, self.chat_template, self.date, self.as_chat, names
            )
            self._examples = read_examples(tuple(self.paths), encoder)
        return self._examples

    def num_examples(self) -> int:
        """Number of rows."""
        if not self._rows:
            self._slices = self.examples().slices(self.sequence_length, self.cut)
            begins, ends = self._slices
            (there,) = np.nonzero(ends > begins)
            if not there.size:
                raise UserError(
                    f'none of the {len(ends)} examples has an answer within sequence_length '
                    f'{self.sequence_length} (cut={self.cut!r})'
                )
            if not self.packing:
                self._rows = [[number] for number in there.tolist()]
            else:
                if self.is_training:  # Other seeds, other neighbours.
                    order = Permutation(there.size, self.input_random_seed)
                    there = there[order(np.arange(there.size))]
                lengths = np.maximum(ends - begins - 1, 0)
                self._rows = best_fit(lengths.tolist(), self.sequence_length, there.tolist())
        return len(self._rows)

    def train_batch(self, index: np.ndarray) -> Batch:
        return self._batch_of(self.drawn(index)[1])

    def eval_batch(self, index: np.ndarray) -> Batch:
        return self._batch_of(index)

    def _batch_of(self, index: np.ndarray) -> Batch:
        found, (begins, ends) = self.examples(), self._slices
        rows = [self._rows[i] if i < self.num_examples() else [] for i in index.tolist()]
        spans = [[slice(begins[n], ends[n]) for n in row] for row in rows]
        spec = language_spec(self.batch_size, self.sequence_length, packed=True)
        known = self._vocabulary()
        segments = [[found.ids[span][1:] for span in row] for row in spans]
        batch = batch_of_segments(segments, spec, known.bytes_per_id, known.bos_id)
        is_first = (batch['weights'] > 0) & (batch['segment_pos'] == 0)
        batch['ids'][is_first] = [found.ids[span.start] for row in spans for span in row]
        is_label = batch['weights'] > 0
        masks = [found.is_answer[span][1:] for row in spans for span in row]
        batch['weights'][is_label] = np.concatenate([np.zeros(0, bool), *masks])
        batch['label_bytes'] *= batch['weights']
        batch['prefix_lengths'] = np.array([self._prefix(row) for row in spans], np.int32)
        return {name: batch[name] for name in self.element_spec()}

    def _prefix(self, row: list[Any]) -> int:
        """The tokens before the last answer of a row; 0 for padding."""
        if not row:
            return 0
        is_answer = self.examples().is_answer[row[0]]
        begins = np.flatnonzero(is_answer & ~np.concatenate([[False], is_answer[:-1]]))
        return max(1, int(begins[-1]))
