"""Rows of pairs and conversations: weights, packing, files, and examples that are too long."""

import gzip
import importlib
import itertools
import json
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance import input_suite
from tests.factories.tiny import experiment
from tests.factories.tokenizer_files import make_tokenizer
from trainer.decoding import Greedy
from trainer.decoding.base import Decoded, DecodeOutput
from trainer.decoding.examples import decoded_examples
from trainer.inputs import FinetuneInput, MixtureInput
from trainer.inputs.finetuning.best_fit import best_fit
from trainer.layers import Attention, Embedding, FeedForward, Stack, TransformerBlock, TransformerLm
from trainer.layers.base import ForwardContext
from trainer.learner import Learner
from trainer.program.setup import prepare_inputs
from trainer.program.step_functions import init_variables
from trainer.program.train_step import forward
from trainer.state import unboxed
from trainer.symbolic.errors import UserError
from trainer.tasks import LanguageModelTask

LENGTH = 24
PAIRS = [{'prompt': f'{n} + {n} =', 'answer': f' {n + n}' * (1 + n % 3)} for n in range(40)]


def write(file: Path, examples: Any = PAIRS) -> str:
    lines = '\n'.join(each if isinstance(each, str) else json.dumps(each) for each in examples)
    file.write_bytes(gzip.compress(lines.encode()) if file.suffix == '.gz' else lines.encode())
    return str(file)


@pytest.fixture(scope='module')
def path(tmp_path_factory: Any) -> str:
    return write(tmp_path_factory.mktemp('pairs') / 'pairs.jsonl')


def made(path: str, **fields: Any) -> FinetuneInput:
    return FinetuneInput(**({'batch_size': 4, 'sequence_length': LENGTH, 'paths': [path]} | fields))


_TRAINING = [each for each in input_suite.TRAINING if 'weights_are_zero' not in each.__name__]
_EVALUATION = [each for each in input_suite.EVALUATION if 'weights_are_zero' not in each.__name__]


@pytest.mark.parametrize('packing', [False, True])
@pytest.mark.parametrize('check', _TRAINING)
def test_training(check: Any, packing: bool, path: str) -> None:
    check(lambda **fields: made(path, is_training=True, packing=packing, **fields))


@pytest.mark.parametrize('packing', [False, True])
@pytest.mark.parametrize('check', _EVALUATION)
def test_evaluation(check: Any, packing: bool, path: str) -> None:
    check(lambda **fields: made(path, packing=packing, **fields))


def segments(data: FinetuneInput) -> list[tuple[str, str]]:
    """The texts and the answers of all segments of an evaluation."""
    found = []
    for batch in input_suite.read_to_end(data):
        for labels, weights, numbers, ids in zip(
            batch['labels'], batch['weights'], batch['segment_ids'], batch['ids'], strict=True
        ):
            for number in range(1, numbers.max() + 1):
                here = numbers == number
                assert ids[here][0] == data.start_id
                np.testing.assert_array_equal(ids[here][1:], labels[here][:-1])
                text, answer = labels[here], labels[here & (weights > 0)]
                found.append((data.text_of(text, 'labels'), data.text_of(answer, 'labels')))
    return found


def test_packing_keeps_each_example_whole(path: str) -> None:
    wanted = [(each['prompt'] + each['answer'], each['answer']) for each in PAIRS]
    data = made(path, packing=True)
    assert sorted(segments(data)) == sorted(wanted)
    assert data.num_examples() < len(PAIRS)
    once, again = made(path, packing=True, is_training=True), made(path, input_random_seed=1)
    assert once.num_examples() == data.num_examples() < again.num_examples() == len(PAIRS)


@given(
    lengths=st.lists(st.integers(0, 9), max_size=40),
    order=st.randoms(use_true_random=False),
)
def test_best_fit_fills_rows_with_each_item_once(lengths: list[int], order: Any) -> None:
    numbers = list(range(len(lengths)))
    order.shuffle(numbers)
    rows = best_fit(lengths, 9, numbers)
    assert sorted(item for row in rows for item in row) == sorted(numbers)
    totals = [sum(lengths[item] for item in row) for row in rows]
    assert max(totals, default=0) <= 9
    assert len(rows) <= 11 / 9 * -(-sum(lengths) // 9) + 4 or min(lengths) > 3
    # Two rows that fit into one would have been one.
    assert all(one + other > 9 for one, other in itertools.pairwise(totals))


def test_rows_without_packing_are_prompts(path: str) -> None:
    data = made(path, batch_size=len(PAIRS))
    batch = data.get_next()
    for row, pair in enumerate(PAIRS):
        prompt = batch['ids'][row, : batch['prefix_lengths'][row]]
        assert data.text_of(prompt, 'labels') == pair['prompt']
        answer = batch['labels'][row, batch['prefix_lengths'][row] - 1 :]
        assert data.text_of(answer, 'labels') == pair['answer']
    np.testing.assert_array_equal(batch['label_bytes'], batch['weights'] * (batch['labels'] > 2))


LONG = [
    {'prompt': 'short', 'answer': ' a'},
    {'prompt': 'a question', 'answer': ' but an answer'},
    {'prompt': 'a question that is long', 'answer': ' no'},
]


def test_decoded_answers_are_compared_with_those_of_the_data(path: str) -> None:
    data = made(path, batch_size=2)
    batch = data.get_next()
    lengths = batch['prefix_lengths']
    answers = [batch['labels'][row, lengths[row] - 1 :] for row in (0, 1)]
    ids = np.zeros((2, 1, LENGTH), np.int32)
    ids[0, 0, : answers[0].size] = answers[0]
    ids[1, 0, :3] = 5, 6, 1
    zeros = jnp.zeros((2, 1))
    decoded = Decoded(jnp.asarray(ids), jnp.array([[3], [3]]), zeros, zeros)
    output = DecodeOutput(jax.tree.map(jnp.asarray, batch), jnp.asarray(lengths), decoded)
    found = list(decoded_examples(Greedy(LENGTH, eos_ids=[1]), data, output, first=1))
    assert [each.is_right for each in found] == [True, False]
    assert [each.prompt for each in found] == [pair['prompt'] for pair in PAIRS[:2]]
    assert [each.target for each in found] == [pair['answer'] for pair in PAIRS[:2]]


@pytest.mark.parametrize(
    ('cut', 'texts', 'left_out'),
    [
        ('right', ['short a', 'a question but a'], '1'),
        ('left', ['short a', 'tion but an answer'[-15:], 'ion that is long no'[-15:]], '0'),
        ('drop', ['short a'], '2'),
    ],
)
def test_long_examples_are_cut_or_left_out_and_counted(
    tmp_path: Path, cut: Any, texts: list[str], left_out: str
) -> None:
    data = made(write(tmp_path / 'a.jsonl', LONG), sequence_length=16, cut=cut, batch_size=3)
    with mock.patch.object(logging, 'warning') as said:
        data.prepare()
    template, *values = said.call_args.args
    words = f'of 3 examples, 2 are longer than sequence_length 16 (cut={cut!r}), and {left_out} are'
    assert words in template % tuple(values)
    batch = data.get_next()
    found = [data.text_of(row, 'labels') for row in batch['labels']]
    assert found == texts + [''] * (3 - len(texts))
    assert data.num_examples() == len(texts)


def test_plain_and_zipped_files_tables_and_saved_data_sets_hold_equal_examples(
    tmp_path: Path,
) -> None:
    pyarrow, parquet = map(importlib.import_module, ('pyarrow', 'pyarrow.parquet'))
    table = pyarrow.Table.from_pylist(PAIRS)
    parquet.write_table(table, tmp_path / 'a.parquet')
    (tmp_path / 'saved').mkdir()
    for number, part in enumerate((table[:4], table[4:])):
        file = tmp_path / f'saved/data-0000{number}-of-00002.arrow'
        with pyarrow.ipc.new_stream(str(file), table.schema) as stream:
            stream.write_table(part)
    names = [{'filename': f'data-0000{number}-of-00002.arrow'} for number in range(2)]
    (tmp_path / 'saved/state.json').write_text(json.dumps({'_data_files': names}))
    write(tmp_path / 'a.jsonl')
    write(tmp_path / 'b.jsonl.gz', PAIRS[:4])
    write(tmp_path / 'c.jsonl.gz', PAIRS[4:])
    paths = [['a.jsonl'], ['[bc].jsonl.gz'], ['a.parquet'], ['saved']]
    found = [
        made('', paths=[str(tmp_path / each) for each in names]).fingerprint() for names in paths
    ]
    assert len(set(found)) == 1
    assert made(str(tmp_path / 'b.jsonl.gz')).fingerprint() != found[0]
    (tmp_path / 'dataset_dict.json').write_text('{"splits": ["saved", "test"]}')
    with pytest.raises(UserError, match=r'holds splits: choose .*/saved or '):
        made(str(tmp_path)).prepare()


CHAT = [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b'}]
TEMPLATE = '{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}'


def test_conversations_have_the_template_of_the_directory_or_of_a_file(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / 'known', chat_template=TEMPLATE)
    path = write(tmp_path / 'a.jsonl', [{'messages': CHAT}])
    data = made(path, vocabulary=str(folder), batch_size=1)
    batch = data.get_next()
    answer = batch['labels'][0][batch['weights'][0] > 0]
    assert data.text_of(answer, 'labels') == 'assistant: b'
    assert answer[-1] == 0 and batch['ids'][0, 0] != data.start_id
    (tmp_path / 'own.jinja').write_text(TEMPLATE.replace('<|end|>', '!'))
    data = made(path, chat_template=str(tmp_path / 'own.jinja'), batch_size=1)
    assert data.text_of(data.get_next()['labels'][0], 'labels') == 'ser: a!assistant: b!'


@pytest.mark.parametrize(
    ('examples', 'message'),
    [
        ([PAIRS[0], '{"prompt"'], r'a.jsonl, line 2: no JSON'),
        (['[1]'], r'a.jsonl, line 1: not a JSON object. Each line needs one, such as {"prompt"'),
        ([PAIRS[0], '', {'question': 'a'}], r"a.jsonl, line 3: it has neither 'messages' nor "),
        ([{'prompt': 'a', 'answer': ''}], r"a.jsonl, line 1: 'answer' is empty"),
        ([{'messages': CHAT[1:]}], r'a.jsonl, line 1: message 1 of .* answers no message'),
        ([{'messages': CHAT}], r'a.jsonl, line 1: it has messages, but there is no chat template'),
        ([], 'paths: the files have no example'),
        ([{'prompt': 'a' * 99, 'answer': 'b'}], 'none of the 1 examples has an answer within seq'),
        (['[' * 100_000], r'a.jsonl, line 1: no JSON'),
    ],
)
def test_examples_that_do_not_fit_are_refused_with_path_and_line(
    tmp_path: Path, examples: Any, message: str
) -> None:
    data = made(write(tmp_path / 'a.jsonl', examples), batch_size=8, is_training=True)
    with pytest.raises(UserError, match=message) as error:
        prepare_inputs(experiment(train_input=data))
    assert str(error.value).startswith('train_input')


@pytest.mark.parametrize(
    ('source', 'message'),
    [
        ("{{ ''.__class__.__mro__ }}", 'line 1: its chat template fails .*SecurityError'),
        ('{% for a in range(99999) %}' * 3 + '{% endfor %}' * 3, 'line 1: .*more than the limit'),
    ],
)
def test_a_template_with_code_or_without_end_stops_the_run(
    tmp_path: Path, source: str, message: str
) -> None:
    (tmp_path / 'own.jinja').write_text(source)
    path = write(tmp_path / 'a.jsonl', [{'messages': CHAT}])
    data = made(path, batch_size=8, is_training=True, chat_template=str(tmp_path / 'own.jinja'))
    with pytest.raises(UserError, match=message):
        prepare_inputs(experiment(train_input=data))


def test_missing_files_and_days_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='paths: no file found'):
        made(str(tmp_path / '*.jsonl')).prepare()
    with pytest.raises(UserError, match=r'chat_template: .* cannot be read'):
        made(write(tmp_path / 'a.jsonl'), chat_template='missing.jinja').prepare()
    with pytest.raises(ValueError, match='date must be a day such as'):
        made('a', date='today')


def test_sources_mix_by_weights(path: str, tmp_path: Path) -> None:
    other = write(tmp_path / 'other.jsonl', [{'prompt': 'x', 'answer': 'y'}])
    data = MixtureInput(
        batch_size=8,
        is_training=True,
        inputs={
            'a': made(path, is_training=True, packing=True),
            'b': made(other, is_training=True, packing=True),
        },
        weights={'a': 3, 'b': 1},
    )
    data.prepare()
    batch = data.get_next()
    texts = [data.text_of(row, 'labels') for row in batch['labels']]
    assert texts.count('xy') == 2


def test_the_loss_is_of_answers_alone_packed_or_not(path: str) -> None:
    block = TransformerBlock(Attention(2), FeedForward(16))
    model = TransformerLm(Embedding(259, 8), Stack([block]))
    task = LanguageModelTask(model=model, learner=Learner(0.1))
    spec = made(path).element_spec()
    variables = unboxed(init_variables(task, spec, jax.random.key(0)))
    totals = []
    for packing in (False, True):
        data = made(path, packing=packing, batch_size=len(PAIRS))
        task.check_input(data)
        batch = data.get_next()
        metrics, _ = jax.jit(lambda b: forward(task, variables, b, {}, ForwardContext()))(batch)
        totals.append((float(metrics['loss'].total), float(metrics['num_predictions'].value())))
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)
    assert totals[0][1] == sum(len(pair['answer']) + 1 for pair in PAIRS)
