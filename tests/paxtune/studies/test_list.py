"""`python -m paxtune.studies list`: every study below a directory."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paxtune.storage.open_study import open_study
from paxtune.study.record import Status
from tests.factories.studies import mixed, read_csv
from tests.factories.toys import toy
from trainer.symbolic.errors import UserError


def test_list_prints_every_study_below(some_studies: Path, shown: Callable[..., str]) -> None:
    rows = json.loads(shown('list', some_studies, '--format=json'))
    assert [Path(row['study']).relative_to(some_studies) for row in rows] == [
        Path('deep/er/done'), Path('front'), Path('measured'), Path('mixed'),
    ]  # fmt: skip
    done, front, measured, some = rows
    assert (done['trials'], done['completed'], done['done']) == (5, 5, True)
    assert (some['trials'], some['num_trials'], some['best'], some['done']) == (8, 9, 0.1, False)
    assert {how: some[how] for how in Status} == {
        'completed': 3, 'stopped': 1, 'infeasible': 2, 'active': 1, 'paused': 0,
        'requested': 1,
    }  # fmt: skip
    assert (front['front'], front['best']) == (2, None)
    assert (measured['front'], measured['best']) == (None, None)
    assert {row['experiment'] for row in rows} == {'Toy'}
    assert not any(row['problem'] for row in rows)


def test_list_has_the_same_columns_in_every_row_and_form(
    some_studies: Path, shown: Callable[..., str]
) -> None:
    as_json = json.loads(shown('list', some_studies, '--format=json'))
    as_csv = read_csv(shown('list', some_studies, '--format=csv'))
    assert {tuple(row) for row in as_json} == {tuple(row) for row in as_csv}
    assert float(as_csv[0]['best']) == as_json[0]['best']
    table = shown('list', some_studies)
    assert '\x1b' not in table
    assert '8/9' in table
    assert 'problem' not in table


def test_a_study_that_cannot_be_read_is_a_row_with_the_reason(
    tmp_path: Path, shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(tmp_path / 'good')
    for name in ('empty', 'garbage', 'old', 'torn'):
        (tmp_path / name).mkdir()
    (tmp_path / 'empty' / 'study.db').touch()
    (tmp_path / 'garbage' / 'study.db').write_text('this is no database')
    shutil.copy(tmp_path / 'good' / 'study.db', tmp_path / 'torn')
    with (tmp_path / 'torn' / 'study.db').open('r+b') as file:
        file.truncate(20_000)
    with monkeypatch.context() as another_version:
        another_version.setattr('paxtune.storage.codec.FORMAT', '1')
        with open_study(tmp_path / 'old', toy()):
            pass
    rows = {Path(r['study']).name: r for r in json.loads(shown('list', tmp_path, '--format=json'))}
    assert rows['good']['problem'] is None
    assert all(rows[name]['problem'] for name in ('empty', 'garbage', 'old', 'torn'))
    assert 'another version of paxtune made the study' in rows['old']['problem']
    assert rows['old']['trials'] is None
    assert len([line for line in shown('list', tmp_path).splitlines() if '/' in line]) == 5


def test_list_of_nothing(tmp_path: Path, shown: Callable[..., str]) -> None:
    assert shown('list', tmp_path) == f'There are no studies in {tmp_path} and below.\n'
    assert json.loads(shown('list', tmp_path, '--format=json')) == []
    with pytest.raises(UserError, match='nowhere: there is no such directory'):
        shown('list', tmp_path / 'nowhere')
