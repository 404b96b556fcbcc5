import json

import numpy as np
import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance import input_suite
from tests.factories.tiny import experiment
from trainer.inputs import JsonShardsInput, MixtureInput, StdlibInput, TextInput
from trainer.inputs.examples import Examples
from trainer.program.setup import localized, prepare_inputs
from trainer.symbolic.errors import UserError

LENGTH = 16
SIZES = {'a': 3, 'b': 5, 'c': 4}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp('texts')
    drawn = np.random.default_rng(0)
    for name in SIZES:
        (root / name).write_bytes(drawn.bytes(2000))
    return root


def source(folder, name, **fields):
    fields = {'batch_size': SIZES[name], 'sequence_length': LENGTH, 'is_training': True} | fields
    return TextInput(paths=[str(folder / name)], **fields)


def maker(folder, **fixed):
    def make(**fields):
        data = {
            'is_training': True,
            'inputs': {name: source(folder, name) for name in SIZES},
            'weights': {'a': 5.0, 'b': 2.5, 'c': 2.5},
        }
        return MixtureInput(**(data | fixed | fields))

    return make


@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training(check, folder):
    check(maker(folder))


def names_of(folder, batches):
    """The name of each example's input."""
    texts = {name: (folder / name).read_bytes() for name in SIZES}
    rows = [bytes(row.tolist()) for batch in batches for row in batch['ids']]
    return [next(name for name, text in texts.items() if row in text) for row in rows]


def test_each_input_has_its_share(folder):
    names = names_of(folder, input_suite.read(maker(folder)(batch_size=4), 10))
    assert [names.count(name) for name in 'abc'] == [20, 10, 10]


def test_examples_of_an_input_come_in_its_own_order(folder):
    batches = input_suite.read(maker(folder)(batch_size=7), 20)
    names = names_of(folder, batches)
    rows = [row for batch in batches for row in batch['ids']]
    alone = Examples(source(folder, 'b'))
    taken = [row for row, name in zip(rows, names, strict=True) if name == 'b']
    np.testing.assert_array_equal(taken, alone.take(len(taken))['ids'])


def test_weights_change_the_order_and_not_the_data(folder):
    one, other = maker(folder), maker(folder, weights={'a': 0.0, 'b': 1.0, 'c': 0.0})
    assert one(batch_size=4).fingerprint() == other(batch_size=4).fingerprint()
    assert set(names_of(folder, input_suite.read(other(batch_size=4), 5))) == {'b'}


def test_weights_may_change_at_a_resume_without_making_up_for_the_past(folder):
    data = maker(folder, weights={'a': 1.0, 'b': 0.0, 'c': 0.0})(batch_size=10)
    input_suite.read(data, 4)
    changed = maker(folder, weights={'a': 1.0, 'b': 1.0, 'c': 0.0})(batch_size=10)
    changed.set_position(data.get_position())
    assert 9 <= names_of(folder, input_suite.read(changed, 2)).count('b') <= 11


@given(st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_positions_of_examples_are_exact(size, taken, counts):
    data = {'split': 'train', 'sequence_length': 4, 'is_training': True}
    examples = Examples(StdlibInput(batch_size=size, **data))
    for count in counts:
        examples.take(count)
    position = json.loads(json.dumps(examples.get_position()))
    fresh = Examples(StdlibInput(batch_size=size, **data))
    fresh.set_position(position)
    assert json.loads(json.dumps(fresh.get_position())) == position
    whole = Examples(StdlibInput(batch_size=sum(counts) + taken, **data)).take(sum(counts) + taken)
    np.testing.assert_array_equal(fresh.take(taken)['ids'], whole['ids'][sum(counts) :])
    np.testing.assert_array_equal(examples.take(taken)['ids'], whole['ids'][sum(counts) :])


def test_few_batches_are_read_again(folder):
    class Counting(TextInput):
        reads = 0

        def get_next(self):
            Counting.reads += 1
            return super().get_next()

    data = {'batch_size': 2, 'sequence_length': 4, 'paths': [str(folder)], 'is_training': True}
    examples = Examples(Counting(**data))
    examples.take(2 * 1000)
    Counting.reads = 0
    Examples(Counting(**data)).set_position(examples.get_position())
    assert Counting.reads <= 32


def test_hosts_mix_equally(folder):
    hosts = [
        names_of(
            folder,
            input_suite.read(
                maker(folder)(batch_size=4, num_infeed_hosts=2, infeed_host_index=host), 5
            ),
        )
        for host in (0, 1)
    ]
    assert hosts[0] == hosts[1]


def test_it_trains_searches_and_is_localized(folder):
    weights = {'a': 1.0, 'b': pg.floatv(0.0, 1.0), 'c': pg.oneof([0.0, 0.5])}
    data = maker(folder, weights=weights)(batch_size=8)
    assert len(pg.dna_spec(data).elements) == 2
    made = experiment(train_input=data, task__model__embedding__vocab_size=256)
    prepare_inputs(made)
    trial = pg.materialize(made, pg.DNA([0.5, 1]))
    assert trial.train_input.shares == {'a': 0.5, 'b': 0.25, 'c': 0.25}
    assert localized(trial).train_input.num_infeed_hosts == 1
    assert trial.train_input.get_next()['ids'].shape == (8, LENGTH)


def test_a_model_with_a_smaller_vocabulary_is_refused(folder):
    made = experiment(train_input=maker(folder)(batch_size=8))
    with pytest.raises(UserError, match='train_input: its vocabulary has 256 ids'):
        prepare_inputs(made)


def test_specs_of_inputs_must_be_equal(folder):
    def refused(**fields):
        data = maker(folder, inputs={'a': source(folder, 'a'), 'b': source(folder, 'b', **fields)})
        data = data(batch_size=2, weights={'a': 1, 'b': 1})
        with pytest.raises(UserError) as error:
            data.prepare()
        return str(error.value)

    message = refused(sequence_length=8)
    assert message.startswith('inputs.b: its examples differ from those of inputs.a: ids is ')
    assert message.endswith('int32[8], not int32[16]')


def test_vocabularies_of_inputs_must_be_equal(folder, tmp_path):
    shards = JsonShardsInput(
        batch_size=2, sequence_length=LENGTH, is_training=True, paths=[str(tmp_path / '*.gz')]
    )
    inputs = {'a': source(folder, 'a'), 'shards': shards}
    data = maker(folder, inputs=inputs, weights={'a': 1.0, 'shards': 1.0})(batch_size=2)
    with pytest.raises(
        UserError, match=r'inputs.shards: no shard found for .* Set inputs.shards.paths'
    ):
        data.prepare()
    (tmp_path / 'x.gz').write_bytes(b'')
    message = (
        r'inputs.shards: its vocabulary \(259 ids, bytes\) differs from that of inputs.a \(256 ids'
    )
    with pytest.raises(UserError, match=message):
        data.prepare()


def test_messages_name_the_fields_of_the_inputs(folder):
    inputs = {
        'a': source(folder, 'a'),
        'b': TextInput(batch_size=2, sequence_length=LENGTH, is_training=True, paths=['/nowhere']),
    }
    data = maker(folder, inputs=inputs, weights={'a': 1.0, 'b': 1.0})(batch_size=2)
    made = experiment(train_input=data)
    with pytest.raises(UserError, match=r'train_input: inputs.b: .*train_input.inputs.b.paths'):
        prepare_inputs(made)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'is_training': False}, 'is_training must be true: a mixture is only for training'),
        ({'weights': {'a': 1.0, 'b': 1.0}}, r"weights must have the names of inputs.*\['a', 'b'\]"),
        ({'weights': {'a': 1.0, 'b': -1.0, 'c': 1.0}}, 'weights.b must be at least 0.*-1.0'),
        ({'weights': {'a': 1.0, 'b': float('nan'), 'c': 1.0}}, 'weights.b must be .*finite: nan'),
        ({'weights': {'a': 0.0, 'b': 0.0, 'c': 0.0}}, 'weights must not all be zero'),
        ({'inputs': {}, 'weights': {}}, 'weights must not all be zero'),
    ],
)  # fmt: skip
def test_fields_are_checked(fields, message, folder):
    with pytest.raises(ValueError, match=message):
        maker(folder)(batch_size=2, **fields)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'is_training': False}, 'inputs.b.is_training must be true'),
        ({'num_infeed_hosts': 2}, 'inputs.b.num_infeed_hosts must be 0'),
    ],
)
def test_inputs_are_checked(fields, message, folder):
    inputs = {'a': source(folder, 'a'), 'b': source(folder, 'b', **fields)}
    with pytest.raises(ValueError, match=message):
        maker(folder)(batch_size=2, inputs=inputs, weights={'a': 1.0, 'b': 1.0})
