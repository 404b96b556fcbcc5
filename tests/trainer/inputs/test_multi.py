import json

import numpy as np
import pytest

from tests.conformance import input_suite
from tests.factories.tiny import experiment
from trainer.inputs import DigitsInput, EndOfData, MultiInput, StdlibInput, TextInput
from trainer.program.setup import prepare_inputs
from trainer.symbolic.errors import UserError


def maker(is_training, **fixed):
    def make(batch_size=2, **fields):
        data = {'batch_size': batch_size, 'is_training': is_training}
        split = {True: ('train', 'train'), False: ('eval', 'test')}[is_training]
        inputs = {
            'text': StdlibInput(
                split=split[0], sequence_length=8, max_bytes=0 if is_training else 2881, **data
            ),
            'images': DigitsInput(split=split[1], **data),
        }
        return MultiInput(**{'inputs': inputs} | data | fixed | fields)

    return make


@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training(check):
    check(maker(True))


@pytest.mark.parametrize('check', input_suite.EVALUATION)
def test_evaluation(check):
    check(maker(False))  # Both sets have 360 examples.


@pytest.mark.pax('MultiInput')
def test_batches_stand_side_by_side():
    data = maker(True)()
    batch = data.get_next()
    assert set(batch) == set(data.element_spec())
    alone = DigitsInput(batch_size=2, split='train', is_training=True).get_next()
    for name, array in alone.items():
        np.testing.assert_array_equal(batch[f'images.{name}'], array)
    texts = data.ids_to_strings(batch['text.labels'], key='text.labels')
    stdlib = StdlibInput(batch_size=2, split='train', is_training=True, sequence_length=8)
    assert texts == stdlib.ids_to_strings(stdlib.get_next()['labels'])
    assert maker(True, default_input='text')().ids_to_strings(batch['text.labels']) == texts


def test_evaluations_must_end_together():
    data = maker(False)()
    data.rebind({'inputs.text.max_bytes': 100})
    with pytest.raises(UserError, match=r'inputs\.text ends before inputs\.images'):
        input_suite.read_to_end(data)


def test_a_position_is_that_of_each():
    data = maker(True)()
    data.get_next()
    position = json.loads(json.dumps(data.get_position()))
    assert {name: each['batch'] for name, each in position['inputs'].items()} == {
        'text': 1,
        'images': 1,
    }
    with pytest.raises(EndOfData):
        input_suite.read(maker(False)(), 999)


def test_messages_name_the_inputs():
    inputs = {'a': TextInput(batch_size=8, is_training=True, sequence_length=8, paths=['/none'])}
    made = experiment(train_input=MultiInput(batch_size=8, is_training=True, inputs=inputs))
    with pytest.raises(
        UserError, match=r'^train_input: inputs\.a: .*Set train_input\.inputs\.a\.paths'
    ):
        prepare_inputs(made)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'inputs': {}}, 'inputs must name at least one'),
        ({'default_input': 'x'}, r"default_input must be one of \['images', 'text'\]: 'x'"),
        ({'batch_size': 3}, 'inputs.text.batch_size must be 3, as here: 2'),
        ({'is_training': False}, 'inputs.text.is_training must be False, as here: True'),
        (
            {'inputs': {'a.b': DigitsInput(batch_size=2, split='train', is_training=True)}},
            "a name must not contain '.'",
        ),
    ],
)
def test_fields_are_checked(fields, message):
    inputs = maker(True)().sym_getattr('inputs').clone(deep=True)
    data = {'batch_size': 2, 'is_training': True, 'inputs': inputs}
    with pytest.raises(ValueError, match=message):
        MultiInput(**(data | fields))
    (inputs := inputs.clone(deep=True))['text'].rebind(num_infeed_hosts=2)
    with pytest.raises(ValueError, match=r'inputs\.text\.num_infeed_hosts must be 0'):
        MultiInput(batch_size=2, is_training=True, inputs=inputs)
