import numpy as np
import pyglove as pg
import pytest

from tests.conformance import input_suite
from tests.factories import c4_data
from trainer.inputs import C4Input, JsonShardsInput, SeqIOInput
from trainer.symbolic.errors import UserError

LENGTH = 64


@pytest.fixture(autouse=True)
def no_c4_on_this_machine(monkeypatch, tmp_path):
    for name in ('C4_DATA_DIR', 'TFDS_DATA_DIR'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))


@pytest.fixture(scope='module')
def shards(tmp_path_factory):
    return c4_data.make_json_shards(tmp_path_factory.mktemp('shards'))


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
    return c4_data.make_tfds_directory(tmp_path_factory.mktemp('tfds'))


def maker(directory='', split='validation', **fixed):
    def make(**fields):
        return C4Input(
            split=split, sequence_length=LENGTH, data_dir=str(directory), **fixed, **fields
        )

    return make


def experiment(**fields):
    return pg.Dict(
        train_input=maker(split='train', is_training=True, **fields)(batch_size=2),
        eval_inputs=pg.Dict(c4=maker(**fields)(batch_size=2)),
    )


@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training_on_shards(check, shards):
    check(maker(shards, 'train', is_training=True, packing=True))


@pytest.mark.parametrize('check', input_suite.EVALUATION)
def test_evaluation_on_shards(check, shards):
    check(maker(shards, packing=True))


@pytest.mark.pax('--tfds_data_dir')
@pytest.mark.slow
def test_a_tfds_directory_has_exact_positions_and_whole_evaluations(prepared):
    input_suite.position_is_exact(maker(prepared, 'train', is_training=True, packing=True))
    input_suite.evaluation_shares_cover_the_data_once(maker(prepared))


@pytest.mark.parametrize('with_model', [False, True])
def test_both_formats_yield_the_same_rows(with_model, shards, prepared, tmp_path):
    # Two implementations that share no code: ours, and SeqIO's on TensorFlow.
    vocabulary = str(c4_data.make_sentencepiece_model(tmp_path / 'm.model')) if with_model else ''
    from_shards, from_tfds = (
        maker(directory, vocabulary=vocabulary)(batch_size=3) for directory in (shards, prepared)
    )
    for data in (from_shards, from_tfds):
        data.prepare()
    assert isinstance(from_shards.reader(), JsonShardsInput)
    assert isinstance(from_tfds.reader(), SeqIOInput)
    assert from_shards.vocab_size == from_tfds.vocab_size == from_tfds.reader().vocab_size
    assert (
        from_shards.element_spec() == from_tfds.element_spec() == from_tfds.reader().element_spec()
    )
    expected = input_suite.rows(input_suite.read_to_end(from_shards))
    assert sorted(input_suite.rows(input_suite.read_to_end(from_tfds))) == sorted(expected)


def test_only_the_first_documents(shards, prepared):
    from_shards, from_tfds = (
        input_suite.rows(input_suite.read_to_end(maker(directory, num_documents=10)(batch_size=3)))
        for directory in (shards, prepared)
    )
    assert sorted(from_shards) == sorted(from_tfds)
    assert 10 <= len(from_shards) < c4_data.VALIDATION_DOCUMENTS * 2


def test_more_documents_than_there_are(shards, prepared):
    for directory in (shards, prepared):
        everything = input_suite.read_to_end(maker(directory)(batch_size=3))
        limited = input_suite.read_to_end(maker(directory, num_documents=10**6)(batch_size=3))
        input_suite.assert_same(limited, everything)


def test_a_prepared_directory_without_the_split(tmp_path):
    directory = c4_data.make_tfds_directory(tmp_path, validation=())
    with pytest.raises(UserError, match=r"no split 'validation'; it has \['train'\]"):
        maker(directory)(batch_size=3).prepare()


def test_another_data_set_is_not_c4(tmp_path):
    (tmp_path / 'dataset_info.json').write_text('{"name": "mnist"}')
    with pytest.raises(UserError, match='not found'):
        maker(tmp_path)(batch_size=3).prepare()


def test_setting_data_dir_alone_changes_the_format(shards, prepared):
    tree = experiment(packing=True)
    for directory, reader in ((shards, JsonShardsInput), (prepared, SeqIOInput)):
        tree.rebind(
            {'train_input.data_dir': str(directory), 'eval_inputs.c4.data_dir': str(directory)}
        )
        for data in (tree.train_input, tree.eval_inputs.c4):
            data.prepare()
            assert type(data.reader()) is reader
            batch = data.get_next()
            assert {name: array.shape for name, array in batch.items()} == {
                name: spec.shape for name, spec in data.element_spec().items()
            }
            assert np.sum(batch['weights']) > 0


def test_a_position_does_not_carry_over_to_the_other_format(shards, prepared):
    position = maker(shards, 'train', is_training=True)(batch_size=2).get_position()
    with pytest.raises(UserError, match='the data changed'):
        maker(prepared, 'train', is_training=True)(batch_size=2).set_position(position)


@pytest.mark.parametrize('below', ['', 'en', 'c4/en'])
def test_shards_are_found_in_subdirectories(below, shards, tmp_path):
    (tmp_path / 'data' / below).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / 'data' / below).symlink_to(shards)
    data = maker(tmp_path / 'data')(batch_size=2)
    data.prepare()
    assert data.fingerprint() == maker(shards)(batch_size=2).fingerprint()


def test_a_prepared_directory_is_found_at_its_own_path(prepared):
    data = maker(prepared / 'c4' / 'en' / '3.0.1')(batch_size=2)
    data.prepare()
    assert data.fingerprint() == maker(prepared)(batch_size=2).fingerprint()


@pytest.mark.parametrize('name', ['C4_DATA_DIR', 'TFDS_DATA_DIR'])
def test_environment_variables_set_the_directory(name, shards, monkeypatch):
    monkeypatch.setenv(name, str(shards))
    maker()(batch_size=2).prepare()


def test_the_home_directory_is_searched(shards, tmp_path):
    (tmp_path / 'home').mkdir()
    (tmp_path / 'home' / 'tensorflow_datasets').symlink_to(shards)
    maker()(batch_size=2).prepare()


def test_missing_data_are_an_error(tmp_path, monkeypatch):
    with pytest.raises(UserError) as error:
        experiment().train_input.prepare()
    message = str(error.value)
    assert 'C4 (train) not found' in message
    assert str(tmp_path / 'home' / 'tensorflow_datasets') in message
    assert '$C4_DATA_DIR and $TFDS_DATA_DIR not set' in message
    assert 'c4/en/3.0.1' in message
    assert 'c4-train.*.json.gz' in message
    assert '--set train_input.data_dir=DIR eval_inputs.c4.data_dir=DIR' in message
    assert 'C4_DATA_DIR=DIR' in message
    monkeypatch.setenv('C4_DATA_DIR', '/nowhere')
    with pytest.raises(UserError, match=r'/nowhere, .*\(\$TFDS_DATA_DIR not set\)'):
        experiment().eval_inputs.c4.prepare()
    with pytest.raises(UserError, match=r'Looked in /elsewhere for'):
        experiment(directory='/elsewhere').train_input.prepare()


def test_another_version_is_named(tmp_path):
    for version in ('3.1.0', '2.3.1'):
        (tmp_path / 'c4' / 'en' / version).mkdir(parents=True)
    with pytest.raises(
        UserError, match=r'There is version 2\.3\.1 and 3\.1\.0\. .*train_input\.version'
    ):
        experiment(directory=tmp_path).train_input.prepare()


def test_the_version_can_be_set(tmp_path):
    directory = c4_data.make_tfds_directory(tmp_path, version='3.1.0')
    data = maker(directory, version='3.1.0')(batch_size=2)
    data.prepare()
    assert data.get_next()['weights'].any()


def test_a_missing_vocabulary_is_an_error(shards):
    with pytest.raises(UserError, match=r"vocabulary '/no/such\.model': it cannot be read"):
        maker(shards, vocabulary='/no/such.model')(batch_size=2).prepare()


def test_fields_are_checked():
    with pytest.raises(ValueError, match='sequence_length must be at least 1: 0'):
        C4Input(batch_size=1, split='train', sequence_length=0)
    with pytest.raises(ValueError, match='num_documents is only for evaluation'):
        maker(is_training=True, num_documents=3)(batch_size=1)
    with pytest.raises(ValueError, match='validation'):
        maker(split='test')(batch_size=1)
