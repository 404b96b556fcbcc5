import contextlib
import importlib
import json
import pickle
import random

import numpy as np
import pyglove as pg
import pytest

from tests.conformance import input_suite
from tests.factories.c4_data import documents as texts_of
from tests.factories.c4_data import make_sentencepiece_model
from trainer.inputs import ArrayRecordFiles, ArrowFiles, GrainInput, ParquetFiles, TextLines
from trainer.symbolic.errors import UserError

LENGTH = 32
KINDS = ('lines', 'records', 'objects', 'parquet', 'arrow')


def documents(kind, count=60):
    """Distinct texts without line ends."""
    texts = [text.replace('\n', ' ').strip() for text in texts_of(count, seed=KINDS.index(kind))]
    return [f'{kind} {text}' for text in texts]


def write_records(path, records):
    module = importlib.import_module('array_record.python.array_record_module')
    writer = module.ArrayRecordWriter(str(path), 'group_size:1')
    for record in records:
        writer.write(record)
    writer.close()


def write_arrow(folder, part, table):
    """Writes a part of a data set as `Dataset.save_to_disk` does."""
    ipc = importlib.import_module('pyarrow.ipc')
    folder.mkdir(exist_ok=True)
    names = [f'data-{number:05}-of-00002.arrow' for number in range(part + 1)]
    with ipc.new_stream(str(folder / names[part]), table.schema) as stream:
        stream.write_table(table, max_chunksize=7)
    state = {'_data_files': [{'filename': name} for name in names]}
    (folder / 'state.json').write_text(json.dumps(state))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    pyarrow, parquet = map(importlib.import_module, ('pyarrow', 'pyarrow.parquet'))

    root = tmp_path_factory.mktemp('documents')
    for part in (0, 1):
        found = {kind: documents(kind)[part * 30 :][:30] for kind in KINDS}
        (root / f'{part}.txt').write_text('\r\n \n'.join(found['lines']))
        write_records(root / f'{part}.records', [text.encode() for text in found['records']])
        write_records(
            root / f'{part}.objects', [json.dumps({'said': t}).encode() for t in found['objects']]
        )
        table = pyarrow.table({'text': found['parquet'], 'number': list(range(30))})
        parquet.write_table(table, root / f'{part}.parquet', row_group_size=7)
        write_arrow(root / 'saved', part, pyarrow.table({'text': found['arrow']}))
    return root


def source(folder, kind):
    return {
        'lines': lambda: TextLines(paths=[f'{folder}/*.txt']),
        'records': lambda: ArrayRecordFiles(paths=[f'{folder}/*.records']),
        'objects': lambda: ArrayRecordFiles(paths=[f'{folder}/*.objects'], field='said'),
        'parquet': lambda: ParquetFiles(paths=[f'{folder}/*.parquet']),
        'arrow': lambda: ArrowFiles(paths=[f'{folder}/saved']),
    }[kind]()


def maker(folder, kinds=KINDS, **fixed):
    def make(**fields):
        sources = {kind: source(folder, kind) for kind in kinds}
        return GrainInput(**{'sources': sources, 'sequence_length': LENGTH} | fixed | fields)

    return make


def training(folder, kinds=KINDS, **fixed):
    return maker(folder, kinds, is_training=True, **fixed)


def read_documents(batches):
    """The texts of the labels, split at document ends; the last may be cut off."""
    labels = np.concatenate([batch['labels'][batch['weights'] > 0] for batch in batches])
    return [text.decode() for text in bytes(np.maximum(labels - 3, 0).tolist()).split(b'\0')]


@pytest.mark.parametrize('check', input_suite.TRAINING)
@pytest.mark.contract
def test_training(check, folder):
    check(training(folder, packing=True, weights=dict.fromkeys(KINDS, 0.25)))


def test_positions_of_unpacked_documents_are_exact(folder):
    input_suite.position_is_exact(training(folder))


@pytest.mark.parametrize('check', input_suite.EVALUATION)
def test_evaluation(check, folder):
    # Documents are distinct, but some of their ends are equal.
    check(maker(folder, sequence_length=600))


def test_shares_of_a_packed_evaluation_cover_the_data_once(folder):
    input_suite.evaluation_shares_cover_the_data_once(maker(folder, packing=True))


@pytest.mark.slow
def test_worker_processes_change_nothing(folder):
    expected = input_suite.read(training(folder, packing=True)(batch_size=4), 12)
    with contextlib.closing(training(folder, packing=True, num_workers=2)(batch_size=4)) as data:
        input_suite.assert_same(input_suite.read(data, 5), expected[:5])
        position = data.get_position()
        input_suite.assert_same(input_suite.read(data, 3), expected[5:8])
        data.close()  # It can be read on.
        input_suite.assert_same(input_suite.read(data, 4), expected[8:])
    with contextlib.closing(training(folder, packing=True, num_workers=3)(batch_size=4)) as data:
        data.set_position(position)
        input_suite.assert_same(input_suite.read(data, 7), expected[5:])


@pytest.mark.slow
def test_a_read_error_in_a_worker_process_is_raised(folder):
    (folder / 'worker').write_bytes('für'.encode('latin-1'))
    sources = {'a': TextLines(paths=[f'{folder}/worker'])}
    data = training(folder, sources=sources, num_workers=1)(batch_size=1)
    with contextlib.closing(data), pytest.raises(Exception, match='document 0 is no UTF-8'):
        data.get_next()


@pytest.mark.pax('Deterministic input, Grain')
@pytest.mark.parametrize('kind', KINDS)
def test_each_kind_of_file_is_read_once_and_in_order(kind, folder):
    batches = input_suite.read_to_end(maker(folder, [kind], packing=True)(batch_size=4))
    assert read_documents(batches) == [*documents(kind), '']


@pytest.mark.parametrize('window', [0, 8])
def test_an_epoch_reads_each_document_once_in_a_drawn_order(window, folder):
    data = training(folder, ['lines'], packing=True, shuffle_window=window)(batch_size=1)
    size = sum(len(text.encode()) + 1 for text in documents('lines'))
    read = read_documents(input_suite.read(data, 2 * size // LENGTH))
    first, second = read[:60], read[60:-1]
    if not window:
        assert sorted(first) == sorted(documents('lines'))
        assert set(second) <= set(first)
    else:
        number = {text: i for i, text in enumerate(documents('lines'))}
        blocks = [sorted(number[text] for text in first[i : i + 8]) for i in range(0, 56, 8)]
        assert blocks == [list(range(i, i + 8)) for i in range(0, 56, 8)]
    assert first != documents('lines')
    assert first[: len(second)] != second


def shares(read):
    return {kind: sum(text.startswith(kind) for text in read) / len(read) for kind in KINDS}


def test_sources_are_mixed_by_weights(folder):
    weights = {'lines': 3, 'records': 1, 'objects': 0, 'parquet': 2, 'arrow': 2}
    make = training(folder, packing=True, weights=weights)
    for host in (0, 1):
        data = make(batch_size=8, num_infeed_hosts=2, infeed_host_index=host)
        found = shares(read_documents(input_suite.read(data, 100))[:-1])
        wanted = {name: weight / 8 for name, weight in weights.items()}
        assert found == pytest.approx(wanted, abs=0.02)


def test_without_weights_documents_are_read_equally_often(folder, tmp_path):
    (tmp_path / 'few.txt').write_text('lines few\nlines of them\n')
    sources = {
        'few': TextLines(paths=[f'{tmp_path}/few.txt']),
        'records': source(folder, 'records'),
    }
    data = training(folder, sources=sources, packing=True)(batch_size=8)
    found = shares(read_documents(input_suite.read(data, 120))[:-1])
    assert found['lines'] == pytest.approx(2 / 62, abs=0.01)


def test_positions_are_exact_anywhere(folder):
    drawn = random.Random(0)
    data = training(folder, packing=True)(batch_size=3)
    for _ in range(5):
        input_suite.read(data, drawn.randrange(1, 40))
        position = json.loads(json.dumps(data.get_position()))
        assert len(json.dumps(position)) < 200
        fresh = training(folder, packing=True)(batch_size=3)
        fresh.set_position(position)
        input_suite.assert_same(input_suite.read(fresh, 4), input_suite.read(data, 4))


def test_another_source_leaves_the_order_of_the_others(folder):
    alone = training(folder, ['lines'], packing=True)(batch_size=4)
    both = training(folder, ['lines', 'records'], packing=True)(batch_size=4)
    first = read_documents(input_suite.read(alone, 10))[:-1]
    mixed = [t for t in read_documents(input_suite.read(both, 40)) if t.startswith('lines')]
    assert mixed[: len(first)] == first


def test_a_vocabulary_of_pieces(folder, tmp_path):
    model = make_sentencepiece_model(tmp_path / 'm.model')
    data = maker(folder, ['lines'], vocabulary=str(model))(batch_size=2)
    assert data.vocab_size == 400
    (first, *_) = data.ids_to_strings(data.get_next()['labels'])
    assert first.startswith('lines')
    assert data.fingerprint() != maker(folder, ['lines'])(batch_size=2).fingerprint()


@pytest.mark.parametrize('kind', KINDS)
def test_readers_can_be_sent_to_processes(kind, folder):
    reader = source(folder, kind).documents()
    assert reader[31] == documents(kind)[31]
    again = pickle.loads(pickle.dumps(reader))
    assert [again[i] for i in range(60)] == documents(kind)
    assert (len(again), again.fingerprint) == (60, reader.fingerprint)


@pytest.mark.parametrize('kind', KINDS)
def test_changed_files_have_another_fingerprint(kind, folder, tmp_path):
    file = tmp_path / 'copy'
    original = source(folder, kind).files()[0]
    found = []
    for part in source(folder, kind).files():
        file.write_bytes(part.read_bytes())
        copied = source(folder, kind).rebind(paths=[str(file)])
        found.append(copied.documents().fingerprint)
    assert found[0] != found[1]
    there = source(folder, kind).rebind(paths=[str(original)])
    assert there.documents().fingerprint == found[0]  # Wherever they lie.


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda f: TextLines(paths=[f'{f}/*.md']), r'^sources\.a: paths: no file found for .*\.md'),
        (lambda f: TextLines(paths=[f'{f}/blank']), r'^sources\.a: its files have no document'),
        (lambda f: ArrayRecordFiles(paths=[f'{f}/0.txt']), r'^sources\.a: .*no ArrayRecord file'),
        (lambda f: ArrowFiles(paths=[f'{f}/0.txt']), r'^sources\.a: .*no Arrow file'),
        (
            lambda f: ArrowFiles(paths=[f'{f}/saved'], column='texts'),
            r"^sources\.a: .*no column 'texts', it has \['text'\]",
        ),
        (lambda f: ParquetFiles(paths=[f'{f}/0.txt']), r'^sources\.a: .*no Parquet file'),
        (
            lambda f: ParquetFiles(paths=[f'{f}/0.parquet'], column='texts'),
            r"^sources\.a: .*no column 'texts', it has \['text', 'number'\]",
        ),
    ],
)
def test_unreadable_files_are_named_before_reading(make, message, folder):
    (folder / 'blank').write_text('\n  \n')
    data = GrainInput(batch_size=1, sequence_length=4, sources={'a': make(folder)})
    with pytest.raises(UserError, match=message):
        data.prepare()


@pytest.mark.parametrize(
    ('name', 'make', 'message'),
    [
        (
            'objects',
            lambda f: ArrayRecordFiles(paths=[f'{f}/0.objects'], field='text'),
            "record 0 is no JSON object with 'text'",
        ),
        (
            'numbers',
            lambda f: ParquetFiles(paths=[f'{f}/0.parquet'], column='number'),
            "'number' of row 0 is no text: 0",
        ),
        ('latin', lambda f: TextLines(paths=[f'{f}/latin']), 'document 0 is no UTF-8'),
    ],
)
def test_damaged_documents_are_named(name, make, message, folder):
    (folder / 'latin').write_bytes('für'.encode('latin-1'))
    data = GrainInput(batch_size=1, sequence_length=4, sources={'a': make(folder)})
    data.prepare()
    with pytest.raises(UserError, match=message):
        data.get_next()


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'sources': {}}, 'sources must name at least one'),
        ({'weights': {'x': 1.0}}, r"names of sources, \['lines'\]: \['x'\]"),
        ({'weights': {'lines': -1.0}}, 'weights.lines must be at least 0 and finite: -1.0'),
        ({'weights': {'lines': 0.0}}, 'weights must not all be zero'),
        ({'weights': {'lines': 1.0}, 'is_training': False}, 'weights are only for training'),
        ({'num_workers': -1}, 'num_workers must not be negative: -1'),
        ({'shuffle_window': -1}, 'shuffle_window must not be negative'),
        ({'sequence_length': 0}, 'sequence_length must be at least 1'),
    ],
)
def test_fields_are_checked(fields, message, folder):
    with pytest.raises(ValueError, match=message):
        training(folder, ['lines'])(batch_size=1, **fields)
    with pytest.raises(ValueError, match='paths must name at least one'):
        TextLines(paths=[])


def test_weights_can_be_searched_over(folder):
    weights = {'lines': pg.floatv(0.0, 1.0), 'records': 0.5}
    data = training(folder, ['lines', 'records'], weights=weights)(batch_size=2)
    trial = pg.materialize(data, pg.DNA([0.25]))
    assert trial.get_next()['ids'].shape == (2, LENGTH)
