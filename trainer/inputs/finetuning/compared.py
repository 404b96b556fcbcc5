"""Inputs that compare answers to a prompt: pairs of them for training, choices for evaluation."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trainer.inputs.arrays.arrays import Arrays, arrays_of
from trainer.inputs.finetuning.example_tokens import ExampleEncoder
from trainer.inputs.finetuning.records import records_of
from trainer.inputs.finetuning.rows_input import ExampleRowsInput, Row
from trainer.symbolic.errors import UserError, prefixed


class ComparedInput(ExampleRowsInput):
    """Base of inputs of lines with one prompt and several answers.

    Attributes:
        paths: files of JSON lines, directories or patterns, on a disk or in a bucket.
    """

    paths: list[str]

    def check(self) -> None:
        super().check()
        if not self.paths:
            raise ValueError('paths must name at least one file, directory or pattern')

    def examples(self, encoder: ExampleEncoder) -> Iterator[Sequence[Row]]:
        for where, record in records_of(self.paths):
            with prefixed(where):
                rows = self.rows(encoder, record)
            yield rows

    def rows(self, encoder: ExampleEncoder, record: Mapping[str, Any]) -> Sequence[Row]:
        """The rows of a line; none where `row` left one out."""
        raise NotImplementedError(type(self).__name__)


class PreferenceInput(ComparedInput):
    """Pairs for `PreferenceTask`: lines with `prompt`, `chosen` and `rejected`.

    All three are texts, or lists of messages. Without a prompt, `chosen` and `rejected` are whole
    conversations, of which the last message is the answer. A pair with a text that is too long is
    left out of training.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     line = '{"prompt": "2+2=", "chosen": "4", "rejected": "5!"}'
        ...     _ = Path(folder, 'pairs.jsonl').write_text(line)
        ...     data = PreferenceInput(batch_size=1, paths=[folder], sequence_length=8)
        ...     batch = data.get_next()
        >>> data.text_of(batch['rejected.labels'][0], 'labels')
        '2+2=5!'
        >>> batch['rejected.weights'].tolist()
        [[0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]]
    """

    def rows(self, encoder: ExampleEncoder, record: Mapping[str, Any]) -> list[Row]:
        found: Row = {}
        texts = {part: _prompt_and_answer(record, part) for part in ('chosen', 'rejected')}
        if texts['chosen'][0] != texts['rejected'][0]:
            raise UserError("'chosen' and 'rejected' have different prompts")
        for part, (prompt, answer) in texts.items():
            tokens = dataclasses.replace(encoder, answer=part).pair(prompt, answer)
            if (row := self.row(tokens, repr(part))) is None:
                return []
            found |= {f'{part}.{name}': each for name, each in row.items()}
        return [found]


class ChoiceInput(ComparedInput):
    """Questions with several answers, of which the model has to find the right one.

    A line has a `prompt`, its `choices` and `answer`, the number of the right one from 0. The
    answer of a model is the choice with the largest log probability. Metrics beside those of the
    task: `choice_accuracy`, and `choice_accuracy_normalized`, which divides a log probability by
    the number of its tokens.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     line = '{"prompt": "2+2=", "choices": ["4", "22"], "answer": 0}'
        ...     _ = Path(folder, 'test.jsonl').write_text(line)
        ...     data = ChoiceInput(batch_size=2, paths=[folder], sequence_length=8)
        ...     batch = data.get_next()
        >>> batch['example_ids'].tolist()
        [1, 2]
        >>> data.score_metrics({1: -3.0, 2: -3.9})
        {'choice_accuracy': 1.0, 'choice_accuracy_normalized': 0.0}
    """

    def check(self) -> None:
        super().check()
        if self.is_training:
            raise ValueError('is_training: choices are for evaluation')

    @property
    def wants_scores(self) -> bool:
        return True

    def rows(self, encoder: ExampleEncoder, record: Mapping[str, Any]) -> list[Row]:
        choices, right = record.get('choices'), record.get('answer')
        if not isinstance(choices, list) or len(choices) < 2:
            raise UserError(f"'choices' is no list of two answers or more: {choices!r}")
        if type(right) is not int or not 0 <= right < len(choices):
            raise UserError(f"'answer' is no number below {len(choices)}, of a choice: {right!r}")
        found = []
        for number, choice in enumerate(choices):
            row = self.row(encoder.pair(record.get('prompt'), choice), f"'choices'[{number}]")
            assert row is not None  # In evaluation, it would be an error.
            marks = {'is_right': np.float32(number == right), 'choice': np.int32(number)}
            found.append({**row, **marks})
        return found

    def read(self) -> Arrays:
        found = super().read()
        ids = np.arange(1, found.num_examples + 1)  # 0 is padding.
        return arrays_of({**found.features, 'example_ids': ids})

    def score_metrics(self, scores: Mapping[int, float]) -> dict[str, float]:
        features = self.arrays().features
        # An evaluation of some batches has no scores of the others.
        found = [scores.get(each, np.nan) for each in features['example_ids'].tolist()]
        values = np.array([found, found / features['weights'].sum(axis=1)])
        begins = np.flatnonzero(features['choice'] == 0)[1:]
        of_question = zip(
            np.split(values, begins, axis=1), np.split(features['is_right'], begins), strict=True
        )
        right = [r[each.argmax(axis=1)] for each, r in of_question if not np.isnan(each).any()]
        if not right:
            return {}
        plain, normalized = np.mean(right, axis=0)
        return {
            'choice_accuracy': float(plain),
            'choice_accuracy_normalized': float(normalized),
        }


def _prompt_and_answer(record: Mapping[str, Any], part: str) -> tuple[Any, Any]:
    if part not in record:
        raise UserError(f'it has no {part!r}, but {", ".join(sorted(record)) or "nothing"}')
    answer = record[part]
    has_prompt = isinstance(answer, list) and len(answer) > 1
    if has_prompt and _role(answer[0]) != 'assistant':
        return answer[:-1], answer[-1:]
    if 'prompt' not in record:
        raise UserError(f"it has no 'prompt', and {part!r} is no whole conversation")
    return record['prompt'], answer


def _role(message: Any) -> Any:
    return message.get('role') if isinstance(message, Mapping) else None
