"""The origin of a study: what is recorded when it is made, and what stays."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.running.workloads import workload_of
from paxtune.storage.open_study import load_study, open_study
from paxtune.study import provenance
from paxtune.study.record import Provenance
from paxtune.study.redefinition import has_definition, is_redefinition
from tests.factories.toys import toy

ARGV = ['paxtune.search', '--exp=toys.toy', '--set', 'a=b c']


def git(directory: Path, *args: str) -> str:
    user = ['-c', 'user.name=a', '-c', 'user.email=a@example.com']
    done = subprocess.run(
        ['git', *user, *args], cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_commit_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('GIT_CEILING_DIRECTORIES', str(tmp_path))
    outside, repository = tmp_path / 'outside', tmp_path / 'repository'
    outside.mkdir()
    repository.mkdir()
    git(repository, 'init', '-q')
    (repository / 'file').write_text('1')
    git(repository, 'add', 'file')
    git(repository, 'commit', '-q', '-m', 'first')
    head = git(repository, 'rev-parse', 'HEAD')
    monkeypatch.chdir(outside)
    assert provenance.current([]).commit == ''
    monkeypatch.chdir(repository)
    assert provenance.current([]).commit == head
    (repository / 'file').write_text('2')
    (repository / 'folder').mkdir()
    monkeypatch.chdir(repository / 'folder')  # The commit of a directory is found once.
    assert provenance.current([]).commit == f'{head}-dirty'


def test_a_deleted_working_directory_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / 'gone'
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert provenance.current([]).commit == ''


def test_a_study_keeps_the_provenance_of_its_first_process(tmp_path: Path) -> None:
    space = {'x': pg.floatv(0.0, 1.0)}
    for total, argv in ((1, ARGV), (2, ['another'])):
        what = workload_of(lambda x: x, space, command=tuple(argv))
        tune(what, num_trials=total, objective='minimize', job_log_dir=tmp_path / 'study').close()
    with load_study(tmp_path / 'study') as study:
        found = study.record.provenance
        assert len(study.trials) == 2
    assert found.command == tuple(ARGV)
    assert found.versions['python'] == '.'.join(map(str, sys.version_info[:3]))
    assert {*found.versions} == {'python', *provenance.PACKAGES}


def test_a_study_in_memory_records_nothing() -> None:
    with open_study(None, toy()) as study:
        assert study.record.provenance == Provenance()


def test_clients_of_a_service_cannot_change_the_provenance(tmp_path: Path) -> None:
    with open_study(tmp_path / 'study', toy()) as study:
        stored = study.record
    changed = dataclasses.replace(stored, provenance=Provenance(('rm',)))
    assert not has_definition(changed, stored)
    assert not is_redefinition(stored, changed)
