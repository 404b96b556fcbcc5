import hashlib
import sysconfig
from pathlib import Path

import pyglove as pg
import pytest

from tests.conformance import input_suite
from trainer.inputs import StdlibInput
from trainer.symbolic.errors import UserError

LARGE = 151
"""Number of the large file: it comes first in the order of the hashes."""


def maker(**fixed):
    return lambda **fields: StdlibInput(sequence_length=128, **fixed, **fields)


def make_library(root: Path) -> Path:
    """Writes 199 files of 5,500 bytes and a large one: 1,114,500 bytes, with distinct rows."""
    for i in range(200):
        path = root / f'package{i % 7}' / f'module{i}.py'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(hashlib.shake_256(str(i).encode()).digest(20_000 if i == LARGE else 5_500))
    return root


@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training(check):
    check(maker(is_training=True, split='train'))


@pytest.mark.parametrize('check', input_suite.EVALUATION)
def test_evaluation(check, tmp_path):
    # A small library, so that reading it to the end takes no time.
    check(maker(split='eval', path=str(make_library(tmp_path))))


def test_the_corpus_of_this_python():
    train, held_out = (
        StdlibInput(batch_size=1, sequence_length=128, split=s).corpus() for s in ('train', 'eval')
    )
    assert len(held_out.data) == 250_000
    assert 7_600_000 < len(train.data) <= 7_750_000
    assert train.fingerprint == held_out.fingerprint
    text = train.data.tobytes()
    root = Path(sysconfig.get_path('stdlib'))
    inside = {name: (root / name).read_bytes() in text for name in ('typing.py', 'heapq.py')}
    assert any(inside.values())
    assert held_out.data.tobytes()[:1000] not in text


LEFT_OUT = [
    'test/test_x.py',
    'json/tests/test_y.py',
    'site-packages/numpy/core.py',
    'dist-packages/apt.py',
    'idlelib/run.py',
    'lib2to3/main.py',
    '_sysconfigdata__linux.py',
    'config-3.11-x86_64/python-config.py',
    'notes.txt',
]


def fingerprint(library):
    return StdlibInput(
        batch_size=1, sequence_length=8, split='train', path=str(library)
    ).fingerprint()


def test_files_that_are_left_out(tmp_path):
    # The corpus of a process is cached by path, so the library moves as it changes.
    library = make_library(tmp_path / 'first')
    before = fingerprint(library)
    for name in LEFT_OUT:
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text('left out = True\n' * 100)
    (tmp_path / 'outside').mkdir()
    (tmp_path / 'outside' / 'linked.py').write_text('left out = True\n')
    (library / 'linked.py').symlink_to(tmp_path / 'outside' / 'linked.py')
    (library / 'linked').symlink_to(tmp_path / 'outside')
    library = library.rename(tmp_path / 'second')
    assert fingerprint(library) == before
    (library / 'package0' / 'new.py').write_text('x = 1\n')
    library = library.rename(tmp_path / 'third')
    assert fingerprint(library) != before


def test_the_splits_follow_the_hash_of_the_paths(tmp_path):
    library = make_library(tmp_path)
    train, held_out = (
        StdlibInput(batch_size=1, sequence_length=8, split=split, path=str(library)).corpus()
        for split in ('train', 'eval')
    )
    names = [path.relative_to(library).as_posix() for path in library.rglob('*.py')]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    files = [(library / name).read_bytes() for name in names]
    assert len(files[0]) == 20_000  # Too large for evaluation.
    eval_size = 1_114_500 // 32
    assert held_out.data.tobytes() == b''.join(files[1:8])[:eval_size]
    assert train.data.tobytes() == files[0] + b''.join(files[8:])


def test_a_stripped_library_is_refused_with_the_setting_to_use(tmp_path):
    (tmp_path / 'site.py').write_text('x = 1\n')
    tree = pg.Dict(
        train_input=maker(is_training=True, split='train', path=str(tmp_path))(batch_size=1),
        eval_inputs=pg.Dict(eval=maker(split='eval', path=str(tmp_path))(batch_size=1)),
    )
    for data in (tree.train_input, tree.eval_inputs.eval):
        with pytest.raises(UserError, match=r'train_input\.path and eval_inputs\.eval\.path'):
            data.prepare()


def test_a_zipped_library_is_refused(tmp_path):
    data = maker(is_training=True, split='train', path=str(tmp_path / 'python311.zip'))(
        batch_size=1
    )
    with pytest.raises(UserError, match=r'has 0 bytes of \.py files.*train_input\.path'):
        data.prepare()
