import gzip
import json

import numpy as np
import pytest

from tests.conformance import input_suite
from tests.factories import c4_data
from trainer.inputs import JsonShardsInput
from trainer.inputs.tokens.vocabulary import ByteVocabulary
from trainer.symbolic.errors import UserError

LENGTH = 64


@pytest.fixture
def shards(tmp_path):
    return c4_data.make_json_shards(tmp_path)


def maker(shards, split='validation', **fixed):
    def make(**fields):
        return JsonShardsInput(
            paths=[f'{shards}/c4-{split}.*.json.gz'], sequence_length=LENGTH, **fixed, **fields
        )

    return make


@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training(check, shards):
    check(maker(shards, 'train', is_training=True))


@pytest.mark.parametrize('packing', [True, False])
@pytest.mark.parametrize('check', input_suite.EVALUATION)
def test_evaluation(check, packing, shards):
    check(maker(shards, packing=packing))


def segments(batches):
    """The labels of each segment, as texts."""
    texts = []
    for batch in batches:
        for i, weights in enumerate(batch['weights']):
            ids = batch['segment_ids'][i] if 'segment_ids' in batch else weights
            texts += [
                bytes(np.maximum(batch['labels'][i][ids == k] - 3, 0).tolist())
                for k in range(1, int(ids.max()) + 1)
            ]
    return texts


@pytest.mark.parametrize('packing', [True, False])
def test_evaluation_reads_every_document_once(packing, shards):
    batches = input_suite.read_to_end(maker(shards, packing=packing)(batch_size=4))
    read = b''.join(segments(batches)).split(b'\0')
    wanted = [text.encode() for text in c4_data.documents(c4_data.VALIDATION_DOCUMENTS, seed=2)]
    assert read == [*wanted, b'']
    num_bytes = sum(batch['label_bytes'].sum() for batch in batches)
    assert num_bytes == sum(map(len, wanted))
    num_tokens = sum(batch['weights'].sum() for batch in batches)
    assert num_tokens == num_bytes + len(wanted)


def test_packed_rows_are_full_and_segments_are_numbered(shards):
    batches = input_suite.read(
        maker(shards, 'train', is_training=True, packing=True)(batch_size=4), 5
    )
    for batch in batches:
        assert batch['weights'].all()
        for ids, labels, segment, pos in zip(
            *(batch[name] for name in ('ids', 'labels', 'segment_ids', 'segment_pos')), strict=True
        ):
            first = pos == 0
            assert segment.tolist() == np.cumsum(first).tolist()
            assert not ids[first].any()
            np.testing.assert_array_equal(ids[1:][~first[1:]], labels[:-1][~first[1:]])
            assert (pos[1:][~first[1:]] == pos[:-1][~first[1:]] + 1).all()
            # A segment ends with its row or with the end of its document, and only there.
            ends = np.append(first[1:], True)
            assert (labels[ends][:-1] == 1).all()
            assert not (labels[~ends] == 1).any()


def test_unpacked_rows_hold_one_document_each(shards):
    batch = maker(shards)(batch_size=8).get_next()
    assert set(batch) == {'ids', 'labels', 'weights', 'label_bytes'}
    texts = c4_data.documents(c4_data.VALIDATION_DOCUMENTS, seed=2)
    expected = []
    for text in texts:
        tokens = [*ByteVocabulary().encode(text).tolist(), 1]
        expected += [tokens[i : i + LENGTH] for i in range(0, len(tokens), LENGTH)]
    for labels, ids, weights, row in zip(
        batch['labels'], batch['ids'], batch['weights'], expected, strict=False
    ):
        assert labels.tolist() == row + [0] * (LENGTH - len(row))
        assert ids.tolist() == [0, *row[:-1]] + [0] * (LENGTH - len(row))
        assert weights.sum() == len(row)


@pytest.mark.parametrize('train_shards', [4, 1])
def test_an_epoch_of_training_covers_the_data_over_all_hosts(train_shards, tmp_path):
    shards = c4_data.make_json_shards(tmp_path, train_shards=train_shards)
    read = []
    for host in (0, 1):
        data = maker(shards, 'train', is_training=True)(
            batch_size=1, num_infeed_hosts=2, infeed_host_index=host
        )
        batches = []
        while data.get_position()['epoch'] == 0:
            batches.append(data.get_next())
        read += b''.join(segments(batches[:-1])).split(b'\0')[:-1]
    wanted = c4_data.documents(c4_data.TRAIN_DOCUMENTS, seed=1)
    assert sorted(read) == sorted(text.encode() for text in wanted)


def test_epochs_read_the_shards_in_other_orders(shards):
    data = maker(shards, 'train', is_training=True, input_random_seed=3)(batch_size=1)
    orders = []
    for epoch in range(4):
        files, wanted = [], -1
        while (place := data.get_position())['epoch'] == epoch:
            if place['shard'] != wanted:
                wanted = place['shard']
                files.append(data.shards_of(epoch)[wanted].name)
            data.get_next()
        orders.append(tuple(files))
    assert all(len(set(order)) == 4 for order in orders)
    assert len(set(orders)) > 1


def test_a_position_opens_no_shard_before_its_own(shards):
    make = maker(shards, 'train', is_training=True, packing=True)
    data = make(batch_size=4)
    while data.get_position()['shard'] < 2:
        data.get_next()
    position = data.get_position()
    expected = input_suite.read(data, 3)
    fresh = make(batch_size=4)
    fingerprint = fresh.fingerprint()
    for shard in fresh.shards_of(0)[:2]:
        shard.write_bytes(b'damaged')
    assert position['fingerprint'] == fingerprint
    fresh.set_position(position)
    input_suite.assert_same(input_suite.read(fresh, 3), expected)


def test_only_the_first_documents(shards):
    data = maker(shards, num_documents=17)(batch_size=4)  # 15 lie in the first shard.
    read = b''.join(segments(input_suite.read_to_end(data))).split(b'\0')[:-1]
    texts = c4_data.documents(c4_data.VALIDATION_DOCUMENTS, seed=2)
    assert read == [text.encode() for text in texts[:17]]
    assert data.fingerprint() != maker(shards)(batch_size=4).fingerprint()
    with pytest.raises(ValueError, match='num_documents is only for evaluation'):
        maker(shards, num_documents=17, is_training=True)(batch_size=4)


def test_a_sentencepiece_vocabulary(shards, tmp_path):
    model = str(c4_data.make_sentencepiece_model(tmp_path / 'm.model'))
    data = maker(shards, vocabulary=model)(batch_size=4)
    input_suite.spec_matches_batches(maker(shards, vocabulary=model))
    batches = input_suite.read_to_end(data)
    texts = c4_data.documents(c4_data.VALIDATION_DOCUMENTS, seed=2)
    normalized = [' ' + ' '.join(text.split()) if text else '' for text in texts]
    num_bytes = sum(batch['label_bytes'].sum() for batch in batches)
    assert num_bytes == sum(len(text.encode()) for text in normalized)
    assert sum(batch['weights'].sum() for batch in batches) < num_bytes
    assert data.fingerprint() != maker(shards)(batch_size=4).fingerprint()


def test_changed_shards_are_other_data(shards):
    before = maker(shards)(batch_size=2).fingerprint()
    path = shards / 'c4-validation.00001-of-00002.json.gz'
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[content.index(b'timestamp')] ^= 1
    path.write_bytes(gzip.compress(bytes(content), mtime=0))
    assert maker(shards)(batch_size=2).fingerprint() != before


@pytest.mark.parametrize(
    ('line', 'reason'),
    [
        ('{"text": "cut of', 'no JSON'),
        ('{"url": "x"}', 'not a JSON object with a "text"'),
        ('{"text": 3}', 'not a JSON object with a "text"'),
        ('[]', 'not a JSON object'),
        (b'{"text": "\xff"}', 'no JSON'),
    ],
)
def test_a_damaged_line_is_named(line, reason, tmp_path):
    path = tmp_path / 'c4-validation.00000-of-00001.json.gz'
    good = json.dumps({'text': 'good'}).encode() + b'\n'
    line = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(gzip.compress(good * 2 + line + b'\n' + good))
    data = maker(tmp_path)(batch_size=1)
    input_suite.read(data, 2)
    with pytest.raises(UserError) as error:
        data.get_next()
    assert f'{path}, line 3: {reason}' in str(error.value)


@pytest.mark.parametrize('damage', ['cut', 'flipped', 'not gzip'])
def test_a_damaged_file_is_named(damage, shards):
    path = shards / 'c4-validation.00000-of-00002.json.gz'
    content = bytearray(path.read_bytes())
    if damage == 'cut':
        content = content[: len(content) // 2]
    elif damage == 'flipped':
        content[len(content) // 2 : len(content) // 2 + 20] = bytes(20)
    else:
        content[:2] = b'{}'
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        input_suite.read_to_end(maker(shards)(batch_size=1))
    assert str(path) in str(error.value)
    assert 'line' in str(error.value)


def test_missing_shards_are_an_error(tmp_path):
    with pytest.raises(UserError, match=r'no shard found.*eval_inputs.<name>.paths'):
        maker(tmp_path)(batch_size=1).prepare()
    (tmp_path / 'c4-train.0.json.gz').write_bytes(gzip.compress(b''))
    with pytest.raises(UserError, match='holds no document for this host'):
        maker(tmp_path, 'train', is_training=True)(batch_size=1).get_next()


def test_blank_lines_are_left_out(tmp_path):
    path = tmp_path / 'c4-validation.00000-of-00001.json.gz'
    lines = [json.dumps({'text': text}).encode() for text in ('abc', 'de')]
    path.write_bytes(gzip.compress(b'\n'.join([lines[0], b'', b' \r', lines[1], b'', b''])))
    data = maker(tmp_path)(batch_size=1)
    (first, second) = input_suite.read(data, 2)
    assert [int(each['weights'].sum()) for each in (first, second)] == [4, 3]
    data.reset()
    data.get_next()
    position = data.get_position()
    again = maker(tmp_path)(batch_size=1)
    again.set_position(position)
    np.testing.assert_array_equal(again.get_next()['ids'], second['ids'])
