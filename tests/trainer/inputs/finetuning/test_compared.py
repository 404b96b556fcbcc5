"""Lines with several answers to a prompt: pairs of preference, and multiple choice."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.factories.runs import measured
from tests.factories.tiny import experiment
from trainer.experiment import Experiment
from trainer.inputs import ByteVocabulary, ChoiceInput, PreferenceInput
from trainer.layers import Attention, Embedding, FeedForward, Stack, TransformerBlock, TransformerLm
from trainer.learner import Learner
from trainer.symbolic.errors import UserError
from trainer.tasks import LanguageModelTask, PreferenceTask

SIZE = ByteVocabulary().vocab_size


def lines_at(file: Path, *records: Any) -> str:
    file.write_text(''.join(json.dumps(each) + '\n' for each in records))
    return str(file)


def pairs(file: Path, *records: Any, **fields: Any) -> PreferenceInput:
    given = {'batch_size': 2, 'sequence_length': 16, **fields}
    return PreferenceInput(paths=[lines_at(file, *records)], **given)


def question(prompt: str, *choices: str, answer: int = 0) -> dict[str, Any]:
    return {'prompt': prompt, 'choices': list(choices), 'answer': answer}


QUESTIONS = [
    question('a', 'xx', 'y'),
    question('b', 'x', 'yyyy', answer=1),
    question('c', 'x', 'y'),
]


def choices(file: Path, *records: Any, **fields: Any) -> ChoiceInput:
    given = {'batch_size': 4, 'sequence_length': 16, **fields}
    return ChoiceInput(paths=[lines_at(file, *(records or QUESTIONS))], **given)


def byte_model() -> TransformerLm:
    block = TransformerBlock(Attention(2), FeedForward(32))
    return TransformerLm(Embedding(SIZE, 16), Stack([block]))


def test_pairs_are_rows_with_weights_on_the_answer(tmp_path: Path) -> None:
    data = pairs(tmp_path / 'a.jsonl', {'prompt': 'ab', 'chosen': 'c', 'rejected': 'de'})
    batch = data.get_next()
    for part, text, size in (('chosen', 'abc', 2), ('rejected', 'abde', 3)):
        labels, weights = batch[f'{part}.labels'], batch[f'{part}.weights']
        assert data.text_of(labels[0], 'labels') == text
        assert np.flatnonzero(weights[0]).tolist() == list(range(2, 2 + size))
        np.testing.assert_array_equal(
            batch[f'{part}.ids'][0, 1:], labels[0, :-1] * (labels[0, 1:] > 0)
        )
        assert not weights[1].any()  # Padding of the batch.


def test_long_pairs_are_left_out_of_training_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [{'prompt': 'a' * size, 'chosen': 'b', 'rejected': 'c'} for size in (3, 30)]
    data = pairs(tmp_path / 'a.jsonl', *records, is_training=True)
    assert data.num_examples() == 1
    assert 'left out 1' in caplog.text
    with pytest.raises(UserError, match=r"line 2: 'chosen' is longer than 16 tokens: raise"):
        pairs(tmp_path / 'a.jsonl', *records).arrays()


def test_choices_are_scored_plainly_and_by_token(tmp_path: Path) -> None:
    data = choices(tmp_path / 'a.jsonl')
    assert data.num_examples() == 6
    # The first question has answers of 3 and 2 tokens, with the end; the second of 2 and 5.
    scores = {1: -3.0, 2: -2.5, 3: -2.0, 4: -2.5, 5: -1.0, 6: -2.0}
    found = data.score_metrics(scores)
    expected = {'choice_accuracy': 1 / 3, 'choice_accuracy_normalized': 1.0}
    assert found == pytest.approx(expected)


def test_questions_that_an_evaluation_leaves_out_do_not_count(tmp_path: Path) -> None:
    data = choices(tmp_path / 'a.jsonl')
    assert data.score_metrics({1: -1.0, 2: -5.0, 3: -1.0})['choice_accuracy'] == 1
    assert data.score_metrics({}) == {}


def preference_run(tmp_path: Path) -> Experiment:
    chosen = [{'prompt': p, 'chosen': 'yes', 'rejected': 'nope'} for p in 'abcdefgh']
    held_out = [question(p, 'nope', 'yes', answer=1) for p in 'ijkl']
    return experiment(
        4,
        task=PreferenceTask(byte_model(), Learner(0.01)),
        train_input=pairs(tmp_path / 'train.jsonl', *chosen, batch_size=8, is_training=True),
        eval_inputs__eval=pairs(tmp_path / 'eval.jsonl', *chosen[:4], batch_size=4),
        eval_inputs__choices=choices(tmp_path / 'choices.jsonl', *held_out),
    )


def test_a_run_trains_on_pairs_and_measures_choices(tmp_path: Path) -> None:
    found = measured(preference_run(tmp_path), tmp_path / 'run')[-1].metrics
    assert found['eval/preference_accuracy'] == 1
    assert found['choices/choice_accuracy_normalized'] == 1
    assert {'choices/choice_accuracy', 'choices/log_pplx'} <= {*found}


def turns(question: str) -> list[dict[str, str]]:
    return [{'role': 'user', 'content': question}, {'role': 'assistant', 'content': 'yes'}]


@pytest.mark.parametrize(
    'record, message',
    [
        ({'prompt': 'a', 'chosen': 'b'}, "it has no 'rejected', but chosen, prompt"),
        ({'chosen': 'b', 'rejected': 'c'}, "it has no 'prompt', and 'chosen' is no whole"),
        ({'prompt': 'a', 'chosen': 'b', 'rejected': ' '}, "'rejected' is empty"),
        ({'prompt': 3, 'chosen': 'b', 'rejected': 'c'}, "'prompt' is no text"),
        ({'chosen': turns('a'), 'rejected': turns('b')}, 'have different prompts'),
        (
            {'prompt': [{'role': 'user', 'content': 'a'}], 'chosen': 'b', 'rejected': 'c'},
            'there is no chat template',
        ),
    ],
)
def test_pairs_that_are_none_are_refused_by_line(
    record: dict[str, Any], message: str, tmp_path: Path
) -> None:
    good = {'prompt': 'a', 'chosen': 'b', 'rejected': 'c'}
    with pytest.raises(UserError, match=rf'a\.jsonl, line 2: .*{message}'):
        pairs(tmp_path / 'a.jsonl', good, record).arrays()


@pytest.mark.parametrize(
    'record, message',
    [
        (question('a', 'b'), "'choices' is no list of two answers or more"),
        (question('a', 'b', 'c', answer=2), "'answer' is no number below 2"),
        ({'prompt': 'a', 'choices': ['b', 'c'], 'answer': True}, "'answer' is no number"),
        (question('a' * 20, 'b', 'c'), "'choices'.0. is longer than 16 tokens"),
    ],
)
def test_questions_that_are_none_are_refused_by_line(
    record: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf'a\.jsonl, line 1: .*{message}'):
        choices(tmp_path / 'a.jsonl', record).arrays()


def test_choices_are_no_training_data(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='choices are for evaluation'):
        choices(tmp_path / 'a.jsonl', is_training=True).check()


def test_no_paths_are_refused() -> None:
    with pytest.raises(ValueError, match='paths must name at least one'):
        PreferenceInput(batch_size=1, sequence_length=4, paths=[]).check()


@pytest.mark.slow
def test_a_task_of_language_measures_choices_too(tmp_path: Path) -> None:
    made = preference_run(tmp_path)
    made.rebind(
        {
            'task': LanguageModelTask(byte_model(), Learner(0.01)),
            'train_input': experiment().train_input,
            'eval_inputs.eval': experiment().eval_inputs['eval'],
            'train.num_train_steps': 2,
        }
    )
    assert 'choices/choice_accuracy' in measured(made, tmp_path / 'run')[-1].metrics


@pytest.mark.parametrize(
    'text, message',
    [('{"prompt": ', r'a\.jsonl, line 1: no JSON'), ('[1]', r'line 1: not a JSON object')],
)
def test_lines_that_are_no_objects_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / 'a.jsonl').write_text(text)
    data = PreferenceInput(batch_size=1, sequence_length=4, paths=[str(tmp_path / '*.jsonl')])
    with pytest.raises(UserError, match=message):
        data.arrays()


def test_missing_files_are_refused(tmp_path: Path) -> None:
    data = PreferenceInput(batch_size=1, sequence_length=4, paths=[str(tmp_path / 'none')])
    with pytest.raises(UserError, match='no file found'):
        data.arrays()
