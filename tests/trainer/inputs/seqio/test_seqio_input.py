import json

import numpy as np
import pyglove as pg
import pytest

from tests.conformance import input_suite
from tests.factories.c4_data import make_json_shards, make_sentencepiece_model
from trainer.inputs import (
    JsonShardsInput,
    LanguageModelFeatures,
    MixtureInput,
    SeqIOInput,
    SequenceModelFeatures,
    allow_task_module,
)
from trainer.symbolic.errors import UserError

MODULE = 'tests.factories.seqio_tasks'
LENGTH = 64

allow_task_module(MODULE)


def maker(task='paxtune_texts', split='validation', lengths=None, **fixed):
    def make(**fields):
        return SeqIOInput(
            mixture_or_task=task,
            split=split,
            task_feature_lengths=lengths or {'targets': LENGTH},
            module=MODULE,
            **fixed,
            **fields,
        )

    return make


def training(**fixed):
    return maker(split='train', is_training=True, packing=True, **fixed)


def sequences(**fixed):
    lengths = {'inputs': 80, 'targets': LENGTH}
    features = SequenceModelFeatures()
    return maker('paxtune_reversed', lengths=lengths, feature_converter=features, **fixed)


def texts(split):
    from tests.factories.seqio_tasks import TEXTS

    return [text.encode()[: LENGTH - 1] for text in TEXTS[split]]


def documents_in(batches):
    """The texts of the labels, split at document ends."""
    labels = np.concatenate([b['labels'][b['weights'] > 0] for b in batches])
    return bytes(np.maximum(labels - 3, 0).tolist()).split(b'\0')[:-1]


@pytest.mark.pax('LanguageModelFeatures')
@pytest.mark.slow
@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training_shuffled_and_packed(check):
    check(training())


@pytest.mark.slow
@pytest.mark.parametrize('check', input_suite.EVALUATION)
def test_evaluation_of_an_encoder_and_a_decoder(check):
    check(sequences())


@pytest.mark.slow
@pytest.mark.parametrize(
    'check', [input_suite.position_is_exact, input_suite.weights_are_zero_where_nothing_is]
)
def test_training_an_encoder_and_a_decoder_packed(check):
    check(sequences(split='train', is_training=True, packing=True))


@pytest.mark.slow
def test_in_a_mixture(tmp_path):
    shards = make_json_shards(tmp_path)

    def make(**fields):
        rows = {'is_training': True, 'packing': True, 'sequence_length': LENGTH}
        inputs = {
            'tasks': training()(batch_size=3),
            'shards': JsonShardsInput(batch_size=5, paths=[f'{shards}/c4-train.*'], **rows),
        }
        weights = {'tasks': 0.7, 'shards': 0.3}
        return MixtureInput(is_training=True, inputs=inputs, weights=weights, **fields)

    make(batch_size=2).prepare()  # Both have bytes for a vocabulary.
    input_suite.position_is_exact(make)


@pytest.mark.slow
def test_a_position_holds_over_epochs_and_in_the_middle_of_buffers():
    data = training()(batch_size=4)
    for skipped in (1, 7, 60):  # 120 documents are some 25 batches.
        input_suite.read(data, skipped)
        position = json.loads(json.dumps(data.get_position()))
        assert 'state' in position
        expected = input_suite.read(data, 4)
        fresh = training()(batch_size=4)
        fresh.set_position(position)
        input_suite.assert_same(input_suite.read(fresh, 4), expected)


@pytest.mark.parametrize('reason', ['no state', 'another pipeline'])
@pytest.mark.slow
def test_a_position_without_a_usable_state_is_exact_too(reason):
    data = training()(batch_size=2)
    input_suite.read(data, 5)
    position = data.get_position()
    if reason == 'no state':
        del position['state']
    else:
        position |= {'pipeline': 'another', 'state': 'never looked at'}
    expected = input_suite.read(data, 2)
    for other in (training()(batch_size=2), data):
        other.set_position(position)
        input_suite.assert_same(input_suite.read(other, 2), expected)


@pytest.mark.pax('num_batches_to_skip')
@pytest.mark.contract
def test_a_state_spares_reading_what_came_before():
    data = training()(batch_size=2)
    input_suite.read(data, 5)
    position = data.get_position()
    fresh = training()(batch_size=2)
    fresh.set_position(position | {'batch': 0})  # Not looked at where there is a state.
    input_suite.assert_same([fresh.get_next()], [data.get_next()])


def test_python_generators_have_no_state_and_are_read_again():
    make = maker('paxtune_mixture', 'train', is_training=True)
    data = make(batch_size=2)
    input_suite.read(data, 5)
    position = data.get_position()
    assert position['batch'] == 5
    assert 'state' not in position
    fresh = make(batch_size=2)
    fresh.set_position(position)
    input_suite.assert_same(input_suite.read(fresh, 2), input_suite.read(data, 2))


@pytest.mark.pax('SeqIO: `mixture_or_task`, `split_name`')
@pytest.mark.parametrize('packing', [True, False])
def test_evaluation_reads_every_example_once(packing):
    batches = input_suite.read_to_end(maker(packing=packing)(batch_size=8))
    assert documents_in(batches) == texts('validation')
    num_bytes = sum(batch['label_bytes'].sum() for batch in batches)
    assert num_bytes == sum(map(len, texts('validation')))


@pytest.mark.slow
def test_evaluation_shares_end_together():
    input_suite.evaluation_shares_cover_the_data_once(maker(packing=True))


def test_evaluation_of_a_mixture_reads_all_of_every_task():
    # SeqIO itself would stop at the end of the first task.
    batches = input_suite.read_to_end(maker('paxtune_mixture')(batch_size=8))
    assert documents_in(batches) == texts('validation') * 2


def test_training_hosts_share_the_examples():
    read = []
    for host in (0, 1):
        # Unshuffled and unpacked, so that the first sixty rows are the first epoch.
        data = maker(split='train', is_training=True, shuffle=False)(
            batch_size=60, num_infeed_hosts=2, infeed_host_index=host
        )
        read += documents_in([data.get_next()])
    assert sorted(read) == sorted(texts('train'))


def test_unpacked_rows_have_no_segments():
    batch = maker()(batch_size=2).get_next()
    assert set(batch) == {'ids', 'labels', 'weights', 'label_bytes'}
    np.testing.assert_array_equal(
        batch['ids'][:, 1:], batch['labels'][:, :-1] * (batch['labels'][:, 1:] > 0)
    )


@pytest.mark.pax('LanguageModelFeatures')
def test_only_targets_have_weight():
    make = maker('paxtune_answers', lengths={'inputs': 8, 'targets': LENGTH})
    batch = make(batch_size=2).get_next()
    assert batch['labels'].shape == (2, 8 + LENGTH)
    for i, text in enumerate(texts('validation')[:2]):
        question = [*(byte + 3 for byte in text[:4]), 1]
        answer = [*(byte + 3 for byte in text), 1]
        whole = question + answer
        assert batch['labels'][i, : len(whole)].tolist() == whole
        assert batch['ids'][i, : len(whole)].tolist() == [0, *whole[:-1]]
        assert batch['weights'][i].sum() == len(answer)
        assert not batch['weights'][i, : len(question)].any()
        assert batch['label_bytes'][i].sum() == len(text)


def test_inputs_are_indicated_to_where_the_first_target_is_predicted():
    make = maker('paxtune_answers', lengths={'inputs': 8, 'targets': LENGTH})
    data = make(batch_size=2)
    batch = data.get_next()
    assert set(batch) == set(data.element_spec())
    assert batch['inputs_indicator'][0].tolist() == [1] * 6 + [0] * (8 + LENGTH - 6)


@pytest.mark.pax('LanguageModelFeatures')
def test_all_tokens_can_have_weight():
    features = LanguageModelFeatures(weights_on_targets_only=False, bos_id=2)
    lengths = {'inputs': 8, 'targets': LENGTH}
    batch = maker('paxtune_answers', lengths=lengths, feature_converter=features)(
        batch_size=2
    ).get_next()
    np.testing.assert_array_equal(batch['weights'], batch['labels'] > 0)
    assert batch['ids'][:, 0].tolist() == [2, 2]


@pytest.mark.pax('SequenceModelFeatures')
def test_an_encoder_reads_inputs_and_a_decoder_targets():
    data = sequences()(batch_size=2)
    batch = data.get_next()
    for i, text in enumerate(texts_of_validation()[:2]):
        reading = [*(byte + 3 for byte in text.encode()), 1][:80]
        reading[-1] = 1
        there = batch['encoder_weights'][i] > 0
        assert batch['encoder_ids'][i][there].tolist() == reading
        assert not batch['encoder_ids'][i][~there].any()
        written = [*[byte + 3 for byte in text[::-1].encode()][: LENGTH - 1], 1]
        labels = batch['labels'][i][batch['weights'][i] > 0]
        assert labels.tolist() == written
        assert batch['ids'][i, : len(written)].tolist() == [0, *written[:-1]]
    assert (
        data.ids_to_strings(batch['encoder_ids'], key='encoder_ids')[0] in texts_of_validation()[0]
    )


def texts_of_validation():
    from tests.factories.seqio_tasks import TEXTS

    return TEXTS['validation']


def test_packed_halves_name_the_same_examples():
    data = sequences(split='train', is_training=True, packing=True, shuffle=False)(batch_size=4)
    batch = data.rebind(task_feature_lengths={'inputs': 900, 'targets': 900}).get_next()
    assert batch['segment_ids'].max() > 1
    for row in range(4):
        for segment in range(1, batch['segment_ids'][row].max() + 1):
            reads = batch['encoder_segment_ids'][row] == segment
            writes = batch['segment_ids'][row] == segment
            reading, written = data.ids_to_strings(
                [batch['encoder_ids'][row][reads], batch['labels'][row][writes]]
            )
            assert reading[::-1] == written
            for name, there in (('encoder_segment_pos', reads), ('segment_pos', writes)):
                assert batch[name][row][there].tolist() == list(range(there.sum()))


@pytest.mark.pax('… provenance ids', 'xla_passthrough')
def test_examples_are_numbered_over_hosts_and_padding_is_not():
    found = []
    for host in (0, 1):
        data = maker(example_ids=True)(batch_size=9, num_infeed_hosts=2, infeed_host_index=host)
        assert data.element_spec()['example_ids'].shape == (9,)
        for batch in input_suite.read_to_end(data):
            ids, weigh = batch['example_ids'], batch['weights'].any(axis=1)
            np.testing.assert_array_equal(ids > 0, weigh)
            labels = data.ids_to_strings(batch['labels'])
            found += list(zip(ids[weigh].tolist(), np.array(labels)[weigh], strict=True))
    assert [number for number, _ in sorted(found)] == list(range(1, 41))
    for number, text in found:
        assert texts_of_validation()[number - 1].startswith(text.rstrip('\ufffd'))


@pytest.mark.pax('eval_auto_pad', 'use_cached')
def test_eval_num_examples_and_incomplete_batches():
    few = input_suite.read_to_end(maker(eval_num_examples=7)(batch_size=4))
    assert documents_in(few) == texts('validation')[:7]
    even = input_suite.read_to_end(maker(eval_num_examples=7, eval_auto_pad=False)(batch_size=4))
    assert documents_in(even) == texts('validation')[:4]
    assert (
        maker(eval_num_examples=7)(batch_size=1).fingerprint()
        != maker()(batch_size=1).fingerprint()
    )


def test_too_long_examples_are_cut_or_refused():
    long = maker('paxtune_numbers', lengths={'targets': 2})(batch_size=2)
    assert long.get_next()['labels'].tolist() == [[1, 2], [4, 5]]
    with pytest.raises(UserError, match=r'paxtune_numbers: .*targets'):
        long.rebind(trim_output_features=False).get_next()


def test_a_missing_cache_is_an_error():
    data = maker(use_cached=True)(batch_size=1)
    with pytest.raises(UserError, match=r'paxtune_texts: .*cach'):
        data.prepare()


@pytest.mark.pax('ids_to_strings')
def test_ids_are_turned_into_text_up_to_the_end_of_the_example(tmp_path):
    data = maker()(batch_size=2)
    batch = data.get_next()
    for text, whole in zip(
        data.ids_to_strings(batch['labels']), texts_of_validation(), strict=False
    ):
        assert len(text) > LENGTH // 2
        assert whole.startswith(text.rstrip('\ufffd'))
    model = make_sentencepiece_model(tmp_path / 'm.model')
    other = maker(overridden_vocab=str(model))(batch_size=2)
    other.prepare()
    assert other.ids_to_strings(batch['labels']) != data.ids_to_strings(batch['labels'])
    with pytest.raises(UserError, match=r'vocabulary .*nowhere'):
        maker(overridden_vocab='/nowhere')(batch_size=2).prepare()


def test_unknown_vocabularies_have_no_label_bytes():
    data = maker('paxtune_numbers', lengths={'targets': 4})(batch_size=2)
    assert 'label_bytes' not in data.element_spec()
    batch = data.get_next()
    assert set(batch) == set(data.element_spec())
    assert batch['labels'].tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]]


@pytest.mark.pax('input_random_seed')
def test_seeds_draw_different_orders():
    first, second = (training(input_random_seed=seed)(batch_size=2).get_next() for seed in (0, 1))
    assert (first['labels'] != second['labels']).any()


def test_names_that_are_not_registered():
    tree = pg.Dict(train_input=maker('paxtune_text')(batch_size=1))
    with pytest.raises(UserError, match=r"'paxtune_text'.*paxtune_texts.*train_input\.module"):
        tree.train_input.prepare()
    with pytest.raises(UserError, match=r"no split 'test'.*'train', 'validation'"):
        maker(split='test')(batch_size=1).prepare()
    with pytest.raises(UserError, match=r"no split 'validation'.*\['train'\]"):
        maker('paxtune_train_only')(batch_size=1).prepare()
    with pytest.raises(UserError, match=r"no feature 'inputs'.*it has \['targets'\]"):
        maker(lengths={'inputs': 8, 'targets': 8})(batch_size=1).prepare()


def test_experiments_cannot_import_modules(tmp_path, monkeypatch):
    (tmp_path / 'evil_tasks.py').write_text('raise SystemExit("run!")')
    monkeypatch.syspath_prepend(str(tmp_path))
    data = SeqIOInput(
        batch_size=1,
        mixture_or_task='x',
        split='train',
        task_feature_lengths={'targets': 8},
        module='evil_tasks',
    )
    with pytest.raises(UserError, match=r"module 'evil_tasks' is not imported.*allow_task_module"):
        data.prepare()
    with pytest.raises(UserError, match=r"'trainer\.no_such_tasks' cannot be imported"):
        data.rebind(module='trainer.no_such_tasks').prepare()


def test_fields_are_checked():
    with pytest.raises(ValueError, match="must be of 'targets', or of 'inputs' and 'targets'"):
        maker(lengths={'inputs': 8})(batch_size=1)
    with pytest.raises(ValueError, match=r"task_feature_lengths\['targets'\] must be at least 1"):
        maker(lengths={'targets': 0})(batch_size=1)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'shuffle': True}, 'shuffle is only for training'),
        ({'is_training': True, 'eval_num_examples': 3}, 'eval_num_examples and .* for evaluation'),
        ({'eval_num_examples': 0}, 'eval_num_examples must be at least 1: 0'),
        ({'example_ids': True, 'packing': True}, 'example_ids cannot name .* packed'),
        ({'feature_converter': SequenceModelFeatures()}, "must be of 'inputs' and 'targets'"),
    ],
)
def test_incompatible_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        maker()(batch_size=1, **fields)


def test_tensorflow_sees_no_gpu():
    from trainer.inputs.libraries import libraries

    assert libraries().tf.config.get_visible_devices('GPU') == []
