import pytest

from tests.conformance import input_suite
from tests.factories.tiny import CountingInput, experiment
from trainer.inputs.base import EndOfData
from trainer.inputs.evaluation import eval_batches
from trainer.inputs.peek import Peekable
from trainer.program.setup import prepare_inputs
from trainer.symbolic.errors import UserError

SET = 3
"""Batches in the whole set."""


def numbers(data):
    """The batches of an evaluation, identified by the weights of their first rows."""
    return [int((batch['weights'][0] == 0).sum()) for batch in eval_batches(data)]


def counting(**fields):
    return CountingInput(batch_size=2, num_eval_batches=SET, **fields)


@pytest.mark.pax('**Defect**: one batch', '`reset_for_eval=True`, `N` dynamic')
@pytest.mark.pax('`reset_for_eval=True`, `N` static', '`reset_for_eval=False`, `N` static')
@pytest.mark.parametrize(
    ('fields', 'evaluations'),
    [
        ({}, [[1, 2, 3], [1, 2, 3]]),
        ({'repeat': False}, [[1, 2, 3], [1, 2, 3]]),
        ({'eval_loop_num_batches': 2}, [[1, 2], [1, 2]]),
        ({'eval_loop_num_batches': 9}, [[1, 2, 3], [1, 2, 3]]),
        ({'eval_loop_num_batches': 5, 'repeat': True}, [[1, 2, 3, 1, 2], [1, 2, 3, 1, 2]]),
        (
            {'eval_loop_num_batches': 2, 'reset_for_eval': False},
            [[1, 2], [3, 1], [2, 3], [1, 2]],
        ),
        (
            {'eval_loop_num_batches': 4, 'reset_for_eval': False, 'repeat': True},
            [[1, 2, 3, 1], [2, 3, 1, 2]],
        ),
    ],
)
def test_each_cell_of_the_table(fields, evaluations):
    data = counting(**fields)
    assert [numbers(data) for _ in evaluations] == evaluations


@pytest.mark.pax('`reset_for_eval=False`, `N` dynamic', '… `shuffle`, `repeat`')
@pytest.mark.parametrize(
    ('path', 'fields', 'message'),
    [
        ('eval_inputs.eval', {'reset_for_eval': False}, 'reset_for_eval: .* set eval_loop_num_bat'),
        ('eval_inputs.eval', {'reset_for_eval': False, 'repeat': True}, 'reset_for_eval: .*whole'),
        (
            'eval_inputs.eval',
            {'reset_for_eval': False, 'repeat': False, 'eval_loop_num_batches': 2},
            'repeat: with reset_for_eval=false the data must repeat',
        ),
        ('eval_inputs.eval', {'repeat': True}, 'repeat: .*whole set would never end'),
        ('eval_inputs.eval', {'eval_loop_num_batches': 0}, 'eval_loop_num_batches: .*least 1.*0'),
        ('eval_inputs.eval', {'eval_loop_num_batches': -1}, 'eval_loop_num_batches: .*null .*-1'),
        ('train_input', {'reset_for_eval': False}, 'reset_for_eval: it is only for evaluation'),
        ('train_input', {'eval_loop_num_batches': 1}, 'eval_loop_num_batches: .*num_train_steps'),
        ('train_input', {'repeat': False}, 'repeat: training data repeat'),
    ],
)
def test_contradictions_are_refused_by_path(path, fields, message):
    made = experiment()
    made.rebind({f'{path}.{name}': value for name, value in fields.items()})
    with pytest.raises(UserError, match=f'^{path}.{message}'):
        prepare_inputs(made)


def test_training_data_may_say_that_they_repeat():
    prepare_inputs(experiment(train_input__repeat=True))


def test_empty_data_cannot_repeat():
    data = CountingInput(
        batch_size=2, num_eval_batches=0, reset_for_eval=False, eval_loop_num_batches=1
    )
    with pytest.raises(UserError, match='repeat: the data are empty'):
        numbers(data)


def test_padding_follows_each_batch_with_weight_zero():
    data = counting(batch_padding_size=3)
    spec = data.padded_spec()
    for batch in eval_batches(data):
        assert {n: (a.shape, a.dtype) for n, a in batch.items()} == {
            n: (s.shape, s.dtype) for n, s in spec.items()
        }
        assert batch['ids'][:2].any()
        assert not any(array[2:].any() for array in batch.values())
    with pytest.raises(ValueError, match='batch_padding_size must not be negative: -1'):
        counting(batch_padding_size=-1)


@pytest.mark.pax('peek_padded')
def test_a_peek_does_not_consume_the_batch():
    data, plain = Peekable(counting()), counting()
    first = plain.get_next()
    input_suite.assert_same([data.peek_padded(), data.peek_padded()], [first, first])
    position = data.get_position()
    input_suite.assert_same([data.get_next_padded()], [first])
    assert data.get_position() == plain.get_position()
    later = data.peek_padded()
    data.set_position(position)
    input_suite.assert_same([data.get_next_padded(), data.get_next_padded()], [first, later])
    data.get_next_padded()
    with pytest.raises(EndOfData):
        data.peek_padded()


@pytest.mark.pax('Names of inputs')
@pytest.mark.parametrize('name', ['train', 'a/b', 'a:b', 'a.b', 'a b', '', 'ä'])
def test_names_that_would_be_confused_are_refused(name):
    with pytest.raises(ValueError, match=f'eval_inputs: {name!r} is an invalid name for a set'):
        experiment(eval_inputs={name: counting()})
    experiment(eval_inputs={'c4_en-2': counting()})


def test_ids_without_a_vocabulary_are_numbers():
    ids = counting().get_next()['ids'][:, :3]
    texts = counting().ids_to_strings(ids, lengths=[3, 1])
    assert texts == [' '.join(map(str, ids[0])), str(ids[1, 0])]
