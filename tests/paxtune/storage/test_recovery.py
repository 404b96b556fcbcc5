"""A study whose database was lost or damaged, rebuilt from the records of its trials."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pyglove as pg
import pytest

import paxtune
from paxtune.algorithms import CMAES
from paxtune.storage.database import Database
from paxtune.storage.study_file import DATABASE
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.record import TrialRecord
from paxtune.study.study import Study
from trainer.symbolic.errors import UserError


def loss(values: pg.Dict) -> dict[str, float]:
    if values.x > 0.9:
        raise ValueError('too large')
    return {'objective': (values.x - 0.3) ** 2, 'cost': 1 / 3}


def tuned(directory: Path, num_trials: int) -> Study:
    return paxtune.tune(
        loss,
        space=pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.oneof(['a', 'b'])),
        job_log_dir=directory,
        num_trials=num_trials,
        objective='minimize',
        algorithm=CMAES(),
    )


def records(directory: Path) -> list[TrialRecord]:
    with contextlib.closing(VizierStore(Database(directory / DATABASE, read_only=True))) as store:
        return [record for record in store.trials() if record.status.has_ended]


def lose(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


def damage_a_trial(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"memo":', b'"memx":'))


@pytest.mark.parametrize(
    'harm',
    [lose, truncate, damage_a_trial, lambda path: path.write_bytes(b''),
     lambda path: path.write_text('no database' * 99)],
)  # fmt: skip
def test_a_broken_study_is_rebuilt_and_continues_as_if_nothing_had_happened(
    tmp_path: Path,
    harm: Callable[[Path], object],
    shown: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    tuned(tmp_path / 'whole', 9).close()
    directory = tmp_path / 'broken'
    tuned(directory, 6).close()
    before = records(directory)
    harm(directory / DATABASE)
    if harm is damage_a_trial:
        shown('trials', directory)
        assert f'studies recover {directory}' in caplog.text
    else:
        with pytest.raises(UserError, match=f'studies recover {directory}$'):
            shown('trials', directory)
        with pytest.raises(UserError, match=f'studies recover {directory}$'):
            tuned(directory, 9)
    out = shown('recover', directory)
    assert out.splitlines()[-1].startswith('Recovered 6 trials (')
    assert (directory / f'{DATABASE}.broken').exists() == (harm is not lose)
    assert records(directory) == before
    tuned(directory, 9).close()
    both = [
        [(record.parameters, record.final) for record in records(each)]
        for each in (directory, tmp_path / 'whole')
    ]
    assert both[0] == both[1] and len(both[0]) == 9


def test_recovery_names_the_records_that_cannot_be_read(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    tuned(tmp_path, 3).close()
    with pytest.raises(UserError, match='can be read: there is nothing to recover'):
        shown('recover', tmp_path)
    (tmp_path / DATABASE).unlink()
    (record, *_) = sorted(tmp_path.glob('trials/0002-*/trial.json'))
    record.write_text(json.dumps({'trial': 2}))
    out = shown('recover', tmp_path)
    assert f'{record.parent}: its trial.json cannot be read' in out
    assert [each.id for each in records(tmp_path)] == [1, 3]
    (tmp_path / DATABASE).unlink()
    (tmp_path / 'study.json').unlink()
    with pytest.raises(UserError, match=r'study\.json cannot be read, so the study cannot be'):
        shown('recover', tmp_path)
    with pytest.raises(UserError, match='nowhere: there is no such directory'):
        shown('recover', tmp_path / 'nowhere')


def test_a_recovery_leaves_no_journal_of_the_lost_database(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    tuned(tmp_path, 3).close()
    lose(tmp_path / DATABASE)
    # SQLite would apply them to the new database of this name.
    journals = [f'{DATABASE}-journal', f'{DATABASE}-wal', f'{DATABASE}-shm']
    for name in journals:
        (tmp_path / name).write_bytes(b'of the lost database')
    shown('recover', tmp_path)
    assert not any((tmp_path / name).exists() for name in journals)
    assert (tmp_path / f'{DATABASE}.broken-journal').read_bytes() == b'of the lost database'
    assert [each.id for each in records(tmp_path)] == [1, 2, 3]
