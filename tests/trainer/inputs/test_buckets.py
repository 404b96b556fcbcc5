"""Every input that names files reads them from a disk and from buckets, with equal batches."""

import gzip
import importlib
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from etils import epath

from tests.conformance.input_suite import assert_same, read
from tests.servers import s3
from trainer.inputs.arrays.arrays import NpzInput
from trainer.inputs.arrays.images import ImagesInput
from trainer.inputs.base import Input
from trainer.inputs.grain.document_sources import ArrayRecordFiles, ParquetFiles, TextLines
from trainer.inputs.grain.grain_input import GrainInput
from trainer.inputs.text.c4 import C4Input
from trainer.inputs.text.json_shards import JsonShardsInput
from trainer.inputs.text.text import TextInput
from trainer.inputs.tokens.vocabulary import vocabulary_at
from trainer.runtime.data_paths import data_path, find, local_copy
from trainer.symbolic.errors import UserError

TEXTS = [f'document {i} ' + 'of words ' * (i % 7) for i in range(40)]
ROWS = {'batch_size': 2, 'is_training': True, 'sequence_length': 32}

_LIBRARIES = ('pyarrow', 'pyarrow.parquet', 'array_record.python.array_record_module')


def write(root: Path) -> None:
    """Writes the files of all inputs."""
    pyarrow, parquet, records = map(importlib.import_module, _LIBRARIES)
    folder = root / 'en'
    folder.mkdir(parents=True)
    for shard, texts in enumerate((TEXTS[:20], TEXTS[20:])):
        with gzip.open(folder / f'c4-train.0000{shard}-of-00002.json.gz', 'wt') as lines:
            lines.writelines(json.dumps({'text': text}) + '\n' for text in texts)
        (folder / f'{shard}.txt').write_text('\n'.join(texts))
        table = pyarrow.table({'text': texts})
        parquet.write_table(table, folder / f'{shard}.parquet', row_group_size=8)
        writer = records.ArrayRecordWriter(str(folder / f'{shard}.array_record'), 'group_size:1')
        for text in texts:
            writer.write(text.encode())
        writer.close()
    rng = np.random.default_rng(0)
    np.savez(root / 'arrays.npz', x=rng.normal(size=(9, 3)), y=np.arange(9))
    np.save(root / 'train_images.npy', rng.integers(0, 255, (9, 8, 8, 3), np.uint8))
    np.save(root / 'train_labels.npy', np.arange(9))


def grain(source: Callable[..., TextLines | ArrayRecordFiles | ParquetFiles], end: str) -> Input:
    return GrainInput(**ROWS, sources={'all': source([f'{end}'])})


INPUTS: dict[str, Callable[[str], Input]] = {
    'c4': lambda root: C4Input(**ROWS, split='train', data_dir=root),
    'json_shards': lambda root: JsonShardsInput(**ROWS, paths=[f'{root}/en/*-of-*.json.gz']),
    'json_shard': lambda root: JsonShardsInput(
        **ROWS, paths=[f'{root}/en/c4-train.00001-of-00002.json.gz']
    ),
    'text_files': lambda root: TextInput(**ROWS, paths=[f'{root}/en/1.txt', f'{root}/**/0.t[wx]t']),
    'text_directory': lambda root: TextInput(**ROWS, paths=[f'{root}/en']),
    'npz': lambda root: NpzInput(batch_size=2, is_training=True, path=f'{root}/arrays.npz'),
    'images': lambda root: ImagesInput(
        batch_size=2, is_training=True, data_dir=root, split='train', image_shape=[6, 6, 3]
    ),
    'grain_text': lambda root: grain(TextLines, f'{root}/en/*.txt'),
    'grain_array_record': lambda root: grain(ArrayRecordFiles, f'{root}/en/*.array_record'),
    'grain_parquet': lambda root: grain(ParquetFiles, f'{root}/en/*.parquet'),
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.fixture(scope='session')
def _s3() -> Iterator[str]:
    with s3.started() as bucket:
        yield bucket


@pytest.fixture(params=['gs', 's3'])
def bucket(request: pytest.FixtureRequest) -> str:
    """A directory in a bucket, where nothing is yet."""
    if request.param == 'gs':
        return str(request.getfixturevalue('store'))
    return f'{request.getfixturevalue("_s3")}/{uuid.uuid4().hex}'


def upload(root: Path, bucket: str) -> None:
    store = fsspec.filesystem(bucket.partition('://')[0])
    for file in root.rglob('*'):
        if file.is_file():
            store.pipe(f'{bucket}/{file.relative_to(root)}', file.read_bytes())


@pytest.mark.slow
def test_each_input_reads_equal_batches_from_a_disk_and_from_a_bucket(
    tmp_path: Path, bucket: str
) -> None:
    root = tmp_path / 'data'
    write(root)
    upload(root, bucket)
    for name, make in INPUTS.items():
        local, remote = make(str(root)), make(bucket)
        remote.prepare()
        assert remote.fingerprint() == local.fingerprint(), name
        assert_same(read(remote, 6), read(local, 6))
        again = make(bucket)
        again.set_position(remote.get_position())
        assert_same(read(again, 2), read(local, 2))
        for data in (local, remote, again):
            data.close()


@pytest.mark.slow
def test_missing_files_and_buckets_are_one_message_with_the_path(bucket: str) -> None:
    missing = f'{bucket.partition("://")[0]}://no-such-bucket-{uuid.uuid4().hex}/data'
    for place in (bucket, missing):
        for name, make in INPUTS.items():
            data = make(place)
            with pytest.raises(UserError) as caught:
                data.prepare()
            assert place in str(caught.value), name
            assert '\n' not in str(caught.value)
        with pytest.raises(UserError, match=r'vocabulary .*: it cannot be read'):
            vocabulary_at(f'{place}/model')


@pytest.mark.slow
def test_copies_are_made_once_for_each_version(bucket: str, tmp_path: Path) -> None:
    store, name = fsspec.filesystem(bucket.partition('://')[0]), f'{bucket}/file.txt'
    store.pipe(name, b'first')
    copy = local_copy(data_path(name))
    assert copy.is_relative_to(tmp_path / 'cache' / 'paxtune' / 'data')
    assert copy.read_bytes() == b'first'
    inode = copy.stat().st_ino
    assert local_copy(data_path(name)).stat().st_ino == inode
    store.pipe(name, b'second one')
    assert local_copy(data_path(name)).read_bytes() == b'second one'
    assert [file.name for file in copy.parent.iterdir()] == ['file.txt']


def test_paths_are_local_or_in_a_bucket_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / 'a[1].txt').write_text('here')
    assert data_path('~/a[1].txt') == tmp_path / 'a[1].txt'
    assert find('~/a[1].txt') == find('~/*.txt') == [tmp_path / 'a[1].txt']
    assert local_copy(tmp_path) == tmp_path
    for text in ('gs://b/c', 's3://b/c'):
        path = data_path(text)
        assert isinstance(path, epath.Path) and str(path / 'd') == f'{text}/d'
    with pytest.raises(UserError, match=r'hdfs://b/c: expected a local path, gs://BUCKET'):
        data_path('hdfs://b/c')
    monkeypatch.setitem(sys.modules, 'gcsfs', None)  # As if it were not installed.
    monkeypatch.setitem(sys.modules, 's3fs', None)
    for scheme, extra in (('gs', 'gcs'), ('s3', 's3')):
        with pytest.raises(UserError, match=rf"{scheme}://b/c: .* install 'paxtune\[{extra}\]'"):
            data_path(f'{scheme}://b/c')
