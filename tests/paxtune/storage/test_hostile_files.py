"""Files of studies of unknown origin: links, journals and records that lead elsewhere."""

import base64
import contextlib
import json
import shutil
import socket
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyglove as pg
import pytest

import paxtune
from paxtune.running import trial_json
from paxtune.running.trial_json import OtherTrialError
from paxtune.running.tuner import prepare_to_run
from paxtune.search import main as search
from paxtune.storage.codec import MAX_TRIAL_BYTES, TrialProto
from paxtune.storage.local_store import holds_lock
from paxtune.storage.open_study import load_study, open_study
from paxtune.storage.study_file import DATABASE
from paxtune.study.trial_paths import trial_directory
from tests.factories import function_studies as functions
from tests.factories.studies import ask, rewrite
from trainer.runtime.metric_writer import read_metrics
from trainer.symbolic.errors import UserError

VIEWS = (['show'], ['show', '--trial=1'], ['trials'], ['trials', '--format=json'], ['export'])
SUPER_JOURNAL = bytes.fromhex('d9d505f920a163d7')


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A directory outside of the study, which is the same at the end."""
    directory = tmp_path / 'victim'
    directory.mkdir()
    (directory / 'mine').write_text('mine')
    yield directory
    assert [(each.name, each.read_text()) for each in directory.iterdir()] == [('mine', 'mine')]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a study with a completed trial."""
    space = pg.Dict(x=pg.floatv(0.0, 1.0))
    with open_study(tmp_path / 'study', space, search=functions.search()) as study:
        trial = ask(study)
        Path(trial_directory(study.directory, trial.view)).mkdir(parents=True)
        trial.report(1, {'loss': 1.0})
        trial.complete()
    return tmp_path / 'study'


def write_hot_journal(database: Path, names: Path) -> None:
    """Leaves the journal of a killed transaction, which ends with the path of a super-journal."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute('CREATE TABLE filler (content)')
        writer.executemany('INSERT INTO filler VALUES (?)', [(b'a' * 3000,)] * 200)
        writer.execute('PRAGMA cache_size = 2')
        writer.execute('BEGIN IMMEDIATE')
        writer.execute('UPDATE filler SET content = zeroblob(3000)')
        for suffix in ('', '-journal'):
            shutil.copy(f'{database}{suffix}', f'{database}{suffix}.copy')
        writer.execute('ROLLBACK')
    for suffix in ('', '-journal'):
        Path(f'{database}{suffix}.copy').rename(f'{database}{suffix}')
    path = str(names).encode()
    ending = struct.pack('>I', 2**30 // 4096 + 1) + path
    ending += struct.pack('>II', len(path), sum(path)) + SUPER_JOURNAL
    with open(f'{database}-journal', 'ab') as journal:
        journal.write(ending)


def test_a_journal_deletes_no_file_that_it_names(
    directory: Path, victim: Path, shown: Callable[..., str]
) -> None:
    write_hot_journal(directory / DATABASE, victim / 'mine')
    (row,) = json.loads(shown('list', directory, '--format=json'))
    assert 'study.db-journal leads to another file' in row['problem']
    for argv in VIEWS:
        with pytest.raises(UserError, match='leads to another file'):
            shown(argv[0], directory, *argv[1:])
    assert 'study.db.broken' in shown('recover', directory)
    assert shown('list', directory)


@pytest.mark.parametrize('suffix', ['', '-journal', '-wal', '-shm'])
def test_nothing_is_written_through_a_link_beside_the_database(
    directory: Path, victim: Path, shown: Callable[..., str], suffix: str
) -> None:
    link = Path(f'{directory / DATABASE}{suffix}')
    if not suffix:
        link.rename(directory / 'other.db')
    link.symlink_to(victim / 'mine')
    with pytest.raises(UserError, match=r'symbolic link|leads to another file'):
        shown('add', directory, 'x=0.5')


@pytest.mark.parametrize('name', ['trials', 'trials/0002-x=b'])
def test_no_trial_of_a_function_runs_in_a_link(tmp_path: Path, name: str) -> None:
    def tune(num_trials: int) -> None:
        with paxtune.tune(
            len_of,
            space={'x': pg.oneof(['a', 'b'])},
            objective='minimize',
            algorithm='grid',
            num_trials=num_trials,
            job_log_dir=tmp_path / 'study',
        ):
            pass

    if name != 'trials':
        tune(1)
    (tmp_path / 'victim').mkdir()
    (tmp_path / 'study').mkdir(exist_ok=True)
    (tmp_path / 'study' / name).symlink_to(tmp_path / 'victim')
    with pytest.raises(OtherTrialError, match='symbolic link, which no search makes'):
        tune(2)
    assert list((tmp_path / 'victim').iterdir()) == []


def len_of(x: str) -> float:
    return float(len(x))


def test_the_record_of_an_ended_trial_is_not_written_through_a_link(
    directory: Path, tmp_path: Path
) -> None:
    (folder,) = (directory / 'trials').iterdir()
    folder.rmdir()
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other' / 'trial.json').write_text('{"state": "active"}')
    folder.symlink_to(tmp_path / 'other')
    with load_study(directory, read_only=False) as study:
        prepare_to_run(study)
    assert trial_json.read(tmp_path / 'other') == {'state': 'active'}


@pytest.mark.parametrize('name', ['logs', 'log'])
def test_no_log_of_a_worker_is_written_through_a_link(
    tmp_path: Path, victim: Path, name: str
) -> None:
    (tmp_path / 'study').mkdir()
    if name == 'logs':
        (tmp_path / 'study' / 'logs').symlink_to(victim)
    else:
        (tmp_path / 'study' / 'logs').mkdir()
        (tmp_path / 'study' / 'logs' / f'{socket.gethostname()}-1.log').symlink_to(victim / 'mine')
    flags = ['--exp=tests.factories.tunables.Rates', '--workers=1', '--num_trials=1']
    with pytest.raises(OtherTrialError, match='is in, a symbolic link'):
        search([*flags, f'--job_log_dir={tmp_path / "study"}'])


# --- Values ---


def change(directory: Path, how: Callable[[TrialProto], object]) -> None:
    """Changes the stored trial, as another program might."""
    with contextlib.closing(sqlite3.connect(directory / DATABASE)) as connection, connection:
        ((content,),) = connection.execute('SELECT serialized_trial FROM trials').fetchall()
        proto = TrialProto.FromString(content)
        how(proto)
        changed = proto.SerializeToString()
        connection.execute('UPDATE trials SET serialized_trial = ?', (changed,))


@pytest.mark.parametrize(
    'how',
    [
        lambda proto: setattr(proto, 'id', '9' * 5000),
        lambda proto: setattr(proto, 'id', '-1'),
        lambda proto: setattr(proto, 'id', '7'),
        lambda proto: setattr(proto.start_time, 'seconds', 2**60),
        lambda proto: setattr(proto.final_measurement.metrics[0], 'value', float('nan')),
        lambda proto: setattr(proto.measurements[0].metrics[0], 'value', float('inf')),
        lambda proto: setattr(proto.parameters[0].value, 'number_value', float('nan')),
        lambda proto: setattr(proto.parameters[0].value, 'string_value', '../../victim\x1b[2J'),
        lambda proto: proto.ClearField('parameters'),
    ],
    ids=['id', 'negative', 'other', 'time', 'nan', 'inf', 'nan decision', 'text', 'no decision'],
)
def test_a_trial_with_impossible_values_is_left_out(
    directory: Path,
    shown: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    how: Callable[[TrialProto], object],
) -> None:
    change(directory, how)
    assert json.loads(shown('export', directory))['trials'] == []
    assert 'trial 1 is left out: ' in caplog.text
    for argv in VIEWS:
        with contextlib.suppress(UserError):
            assert '\x1b' not in shown(argv[0], directory, *argv[1:])
    assert '\x1b' not in caplog.text
    with load_study(directory, read_only=False) as study:
        assert ask(study).id == 2
    assert shown('delete', directory, 1, '--yes') == 'Deleted: trial 1.\n'
    caplog.clear()
    assert shown('trials', directory) and not caplog.text
    assert not list((directory / 'trials').glob('0001*'))


@pytest.mark.parametrize('holder', ['/../../victim/mine', 'journal', 'x' * 5000, 'a\0b'])
def test_the_name_of_a_worker_leads_to_no_other_file(
    directory: Path, victim: Path, holder: str
) -> None:
    (directory / f'{DATABASE}-journal').touch()
    assert not holds_lock(directory / DATABASE, holder)
    assert (directory / f'{DATABASE}-journal').exists()
    with load_study(directory, read_only=False) as study:
        study.add({'x': 0.5})
        rewrite(study, 2, holder=holder, status='active')
        assert ask(study).id == 2


def test_a_record_that_unpacks_to_gigabytes_is_left_out_of_a_recovery(
    directory: Path, shown: Callable[..., str]
) -> None:
    (folder,) = (directory / 'trials').iterdir()
    packed = base64.b64encode(zlib.compress(bytes(MAX_TRIAL_BYTES + 1))).decode()
    (folder / 'trial.json').write_text(json.dumps({'record': packed}))
    (directory / DATABASE).unlink()
    assert 'is left out: it ends early, or is too long' in shown('recover', directory)


@pytest.mark.parametrize('content', ['[]', '"x"', '{"state"', '[' * 10_000])
def test_a_changed_record_of_a_trial_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / 'trial.json').write_text(content)
    with pytest.raises(UserError, match=r'trial\.json: expected a JSON object'):
        trial_json.read(tmp_path)


@pytest.mark.parametrize('line', ['[]', '7', '{}'])
def test_changed_metrics_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / 'metrics.jsonl'
    path.write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(UserError, match=r'metrics\.jsonl: .* is no record of metrics'):
        read_metrics(path)
