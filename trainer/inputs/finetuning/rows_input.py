"""Base of inputs that hold few examples in memory, each a row of its own."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging

from trainer.inputs.arrays.arrays import Arrays, ArraysInput, arrays_of
from trainer.inputs.finetuning.example_tokens import ExampleEncoder, ExampleTokens
from trainer.inputs.finetuning.examples_read import encoder_of
from trainer.inputs.tokens.vocabulary_input import VocabularyInput
from trainer.symbolic.errors import UserError

Row = dict[str, Any]
"""The features of an example."""


class ExampleRowsInput(VocabularyInput, ArraysInput):
    """Base of inputs whose rows are `ids`, `labels` and `weights` of one text, padded at its end.

    The weights are 1 for tokens of the answer. A text longer than `sequence_length` is left out of
    training, and an error in evaluation.

    Attributes:
        as_chat: prompts and answers that are texts become messages of the user and of the
            assistant, in the chat template of the vocabulary.
    """

    as_chat: bool = False

    def examples(self, encoder: ExampleEncoder) -> Iterator[Sequence[Row]]:
        """The rows of each line of the data; none where `row` left one out."""
        raise NotImplementedError(type(self).__name__)

    def read(self) -> Arrays:
        found: list[Row] = []
        left_out = 0
        for rows in self.examples(encoder_of(self.vocabulary, as_chat=self.as_chat)):
            found += rows
            left_out += not rows
        if not found:
            raise UserError(self._too_long('each example') if left_out else 'there are no examples')
        if left_out:
            logging.warning('%s: left out %d: %s', self.sym_path, left_out, self._too_long('each'))
        return arrays_of({name: np.stack([row[name] for row in found]) for name in found[0]})

    def row(self, tokens: ExampleTokens, name: str) -> Row | None:
        """The features of a text; None if it is too long for training.

        Raises:
            UserError: it is too long for evaluation; the message has its name.
        """
        if len(tokens.ids) > self.sequence_length + 1:
            if self.is_training:
                return None
            raise UserError(self._too_long(name))
        features = {
            'ids': tokens.ids[:-1],
            'labels': tokens.ids[1:],
            'weights': tokens.is_answer[1:].astype(np.float32),
        }
        return {
            name: np.pad(each, (0, self.sequence_length - len(each)))
            for name, each in features.items()
        }

    def _too_long(self, name: str) -> str:
        paths = ' and '.join(self.settings('sequence_length'))
        return f'{name} is longer than {self.sequence_length} tokens: raise {paths}'
