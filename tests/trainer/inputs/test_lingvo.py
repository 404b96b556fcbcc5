from typing import Any

import numpy as np
import pytest

from tests.conformance import input_suite
from tests.factories.tiny import experiment
from trainer.inputs import (
    LingvoEvalAdaptor,
    LingvoInputAdaptor,
    LingvoInputAdaptorNewBatchSize,
    lingvo_generator,
)
from trainer.program.setup import prepare_inputs
from trainer.symbolic.errors import UserError

INNER = 6
"""Examples in a batch of a generator."""


class NestedMap(dict[str, Any]):
    """A dict with attribute access, as in Lingvo."""

    __getattr__ = dict.__getitem__


class Generator:
    """A generator with the interface of Lingvo."""

    def __init__(self, first=0, stride=1, end=None, size=INNER):
        self._next, self._stride, self._end, self._size = first, stride, end, size

    def GetPreprocessedInputBatch(self):
        numbers = self._next + self._stride * np.arange(self._size)
        if self._end is not None:
            numbers = numbers[numbers < self._end]
        if not numbers.size:
            raise StopIteration
        self._next = int(numbers[-1]) + self._stride
        rows = numbers[:, None] * 10 + np.arange(1, 5)
        return NestedMap(
            src=NestedMap(ids=rows.astype(np.int64), paddings=np.zeros(rows.shape)),
            labels=rows + 1,
            weights=np.ones(rows.shape),
            names=np.array([f'example {n}' for n in numbers]),
            buckets=[numbers + 1],
        )

    def IdsToStrings(self, ids, lengths):
        return np.array(
            [' '.join(map(str, row[:n])).encode() for row, n in zip(ids, lengths, strict=True)]
        )


@lingvo_generator
def endless(data):
    return Generator(data.infeed_host_index, data.num_hosts, size=data.batch_size)


@lingvo_generator
def finite(data):
    """Gives each host an equal share."""
    end = 120 // (data.batch_size * data.num_hosts) * data.batch_size * data.num_hosts
    return Generator(data.infeed_host_index, data.num_hosts, end, size=data.batch_size)


@lingvo_generator
def large(data):
    return Generator(data.infeed_host_index, data.num_hosts)


@lingvo_generator
def all_of_it(data):
    return Generator(end=50)


@lingvo_generator
def uneven(data):
    return Generator(end=50, size=7)


@lingvo_generator
def repeating(data):
    return Generator()


@lingvo_generator
def empty(data):
    return Generator(end=0)


def maker(kind, factory, **fixed):
    def make(**fields):
        return kind(generator=f'{__name__}.{factory.__name__}', **fixed, **fields)

    return make


COVERS = input_suite.evaluation_shares_cover_the_data_once


@pytest.mark.pax('`LingvoInputAdaptor`')
@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training(check):
    check(maker(LingvoInputAdaptor, endless, is_training=True))


@pytest.mark.parametrize('check', [each for each in input_suite.EVALUATION if each is not COVERS])
def test_evaluation_is_left_to_the_generator(check):
    check(maker(LingvoInputAdaptor, finite))


@pytest.mark.pax('LingvoInputAdaptorNewBatchSize')
@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training_with_another_batch_size(check):
    check(maker(LingvoInputAdaptorNewBatchSize, large, is_training=True))


@pytest.mark.pax('LingvoInputAdaptorNewBatchSize')
def test_a_batch_is_split_into_all_of_its_parts():
    data = maker(LingvoInputAdaptorNewBatchSize, large, is_training=True)(batch_size=2)
    ids = [batch['src.ids'][:, 0].tolist() for batch in input_suite.read(data, 4)]
    assert ids == [[1, 11], [21, 31], [41, 51], [61, 71]]


@pytest.mark.pax('LingvoEvalAdaptor')
@pytest.mark.parametrize('check', input_suite.EVALUATION)
@pytest.mark.parametrize(
    ('factory', 'fields'),
    [(all_of_it, {}), (uneven, {}), (repeating, {'num_samples': 50})],
    ids=['even', 'uneven', 'repeating'],
)
def test_evaluation_of_one_epoch(factory, fields, check):
    if check is input_suite.a_rolling_evaluation_goes_round_and_over_restarts:
        with pytest.raises(ValueError, match='reset_for_eval must be true'):
            check(maker(LingvoEvalAdaptor, factory, **fields))
    else:
        check(maker(LingvoEvalAdaptor, factory, **fields))


@pytest.mark.pax('`LingvoInputAdaptor`')
def test_features_are_flat_and_numbers():
    batch = maker(LingvoInputAdaptor, endless, is_training=True)(batch_size=2).get_next()
    assert {name: str(array.dtype) for name, array in batch.items()} == {
        'buckets[0]': 'int32',
        'labels': 'int32',
        'src.ids': 'int32',
        'src.paddings': 'float32',
        'weights': 'float32',
    }
    assert batch['src.ids'].tolist() == [[1, 2, 3, 4], [11, 12, 13, 14]]


@pytest.mark.pax('LingvoEvalAdaptor')
def test_padding_has_no_weight():
    data = maker(LingvoEvalAdaptor, uneven)(batch_size=8)
    last = input_suite.read_to_end(data)[-1]
    assert last['eval_sample_weights'].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert not any(array[2:].any() for array in last.values())


def test_the_generator_makes_the_text():
    data = maker(LingvoInputAdaptor, endless, is_training=True)(batch_size=2)
    assert data.ids_to_strings(data.get_next()['labels'], [4, 2]) == ['2 3 4 5', '12 13']


def test_tensors_are_arrays_and_tensorflows_end_is_an_end():
    from trainer.inputs.libraries import libraries

    tf = libraries().tf

    class Tensors(Generator):
        def GetPreprocessedInputBatch(self):
            try:
                made = super().GetPreprocessedInputBatch()
            except StopIteration:
                raise tf.errors.OutOfRangeError(None, None, 'end') from None
            return {'labels': tf.constant(made.labels), 'names': tf.constant(['x'] * 6)}

    @lingvo_generator
    def tensors(data):
        return Tensors(end=12)

    data = LingvoInputAdaptor(generator=f'{__name__}.{tensors.__qualname__}', batch_size=6)
    first, second = input_suite.read_to_end(data)
    assert first['labels'][0].tolist() == [2, 3, 4, 5]
    assert set(second) == {'labels'}


def test_an_error_of_a_generator_is_raised():
    class Broken(Generator):
        def GetPreprocessedInputBatch(self):
            raise ZeroDivisionError('in the generator')

    @lingvo_generator
    def broken(data):
        return Broken()

    data = LingvoInputAdaptor(generator=f'{__name__}.{broken.__qualname__}', batch_size=6)
    with pytest.raises(ZeroDivisionError, match='in the generator'):
        data.prepare()


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (maker(LingvoInputAdaptor, large), 'makes batches of 6 .*NewBatchSize'),
        (maker(LingvoInputAdaptorNewBatchSize, large), '6 examples, .*no multiple of batch_size 4'),
        (maker(LingvoEvalAdaptor, empty), 'there is no example'),
        (maker(LingvoInputAdaptor, finite, is_training=True), None),
    ],
)
def test_mismatches_are_named(make, message):
    data = make(batch_size=4)
    with pytest.raises(UserError, match=message or 'it ended, but training data must be'):
        data.prepare() if message else input_suite.read(data, 99)


def test_batches_must_keep_their_shapes():
    class Growing(Generator):
        def GetPreprocessedInputBatch(self):
            super().GetPreprocessedInputBatch()
            return {'labels': np.zeros((INNER, self._next))}

    @lingvo_generator
    def growing(data):
        return Growing()

    data = LingvoInputAdaptor(generator=f'{__name__}.{growing.__qualname__}', batch_size=INNER)
    data.get_next()
    with pytest.raises(UserError, match=r'labels was .*6, 6.* in the first batch, now .*6, 12'):
        data.get_next()


def test_only_registered_generators_are_called():
    made = experiment()
    made.rebind({'eval_inputs.eval': LingvoEvalAdaptor(generator='os.abort', batch_size=8)})
    with pytest.raises(UserError, match=r"^eval_inputs\.eval: generator 'os\.abort' is not regist"):
        prepare_inputs(made)
    near = LingvoEvalAdaptor(generator=f'{__name__}.unevn', batch_size=8)
    with pytest.raises(UserError, match=rf'Did you mean {__name__}.uneven'):
        near.prepare()


@pytest.mark.parametrize(
    ('kind', 'fields', 'message'),
    [
        (LingvoInputAdaptor, {'num_samples': -1}, 'num_samples must not be negative: -1'),
        (
            LingvoInputAdaptor,
            {'num_samples': 1, 'is_training': True},
            'num_samples is only for eval',
        ),
        (LingvoEvalAdaptor, {'is_training': True}, 'is_training must be false'),
        (LingvoEvalAdaptor, {'reset_for_eval': False}, 'reset_for_eval must be true'),
    ],
)
def test_fields_are_checked(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(generator='x', batch_size=1, **fields)
