"""Directories of studies of unknown origin: nothing outside of them is touched."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyglove as pg
import pytest

from paxtune.config.budget import Budget
from paxtune.config.retention import Retention
from paxtune.running.experiment_runner import ExperimentRunner
from paxtune.running.trial_json import OtherTrialError
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.checkpoint_retention import REMOVED, CheckpointCleaner
from paxtune.study.record_checks import DamagedRecordError
from paxtune.study.study import Study
from paxtune.study.trial_paths import trial_directory
from tests.factories import function_studies as functions
from tests.factories import tunables
from tests.factories.studies import ask, rewrite, rewrite_study
from tests.factories.toys import toy
from trainer.symbolic.errors import UserError


def checkpoint(directory: Path) -> Path:
    """Writes what is taken for a checkpoint, and a file of the victim beside it."""
    (directory / 'checkpoints' / '2').mkdir(parents=True)
    (directory / 'checkpoints' / '2' / '_CHECKPOINT_METADATA').write_text('{}')
    (directory / 'mine').write_text('mine')
    return directory


def content(directory: Path) -> list[Path]:
    return sorted(directory.rglob('*'))


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A directory outside of the study, which is the same at the end."""
    directory = checkpoint(tmp_path / 'victim')
    before = content(directory)
    yield directory
    assert content(directory) == before


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    """A study that keeps no checkpoints, with a completed trial."""
    search = functions.search(retention=Retention(best=0))
    with open_study(tmp_path / 'study', pg.Dict(x=pg.floatv(0.0, 1.0)), search=search) as study:
        trial = ask(study)
        checkpoint(Path(trial_directory(study.directory, trial.view)))
        trial.report(1, {'loss': 1.0})
        trial.complete()
        yield study


def folder(study: Study) -> Path:
    return Path(trial_directory(study.directory, study.trial(1)))


@pytest.mark.parametrize('name', ['../../../victim', '..', '/victim', ''])
def test_names_of_sub_experiments_do_not_lead_out(tmp_path: Path, victim: Path, name: str) -> None:
    tunable = tunables.rates(num_trials=1)
    tunable.rebind(
        {
            'sub_experiments': {'part': {'train.num_train_steps': 2}},
            'search.retention': Retention(best=0),
        }
    )
    with open_study(tmp_path / 'study', tunable) as study:
        ask(study).fail('for a reason')
        rewrite_study(study, value=study.record.value.replace('"part"', json.dumps(name)))
    with (
        pytest.raises(UserError, match='is not a valid name'),
        load_study(tmp_path / 'study', read_only=False) as study,
    ):
        CheckpointCleaner(study).remove_unneeded()
    assert (victim / 'checkpoints' / '2').exists()


@pytest.mark.parametrize('where', ['trials', 'trial', 'checkpoints', 'removed', 'inside'])
def test_links_are_not_followed_to_remove_checkpoints(
    study: Study, victim: Path, where: str
) -> None:
    trial = folder(study)
    link = {
        'trials': trial.parent,
        'trial': trial,
        'checkpoints': trial / 'checkpoints',
        'removed': trial / REMOVED,
        'inside': trial / 'checkpoints' / '4',
    }[where]
    if link.exists():
        shutil.rmtree(link)
    target = victim / 'checkpoints' if where in ('checkpoints', 'removed') else victim
    if where == 'trials':
        target = victim.parent / 'others'
        target.mkdir()
        (target / trial.name).symlink_to(victim)
    link.symlink_to(target)
    assert CheckpointCleaner(study).remove_unneeded() == ([1] if where == 'inside' else [])


@pytest.mark.parametrize('name', ['', 'checkpoints', 'summaries', 'decode_out/test'])
def test_a_trial_does_not_run_in_a_link(tmp_path: Path, victim: Path, name: str) -> None:
    tunable = tunables.Writing() if 'decode' in name else tunables.rates(num_trials=1)
    with open_study(tmp_path / 'study', tunable) as study:
        trial = ask(study)
        link = folder(study) / name
        link.parent.mkdir(parents=True)
        link.symlink_to(victim)
        with pytest.raises(OtherTrialError, match='symbolic link, which no search makes'):
            ExperimentRunner().prepare(study, trial)


# --- studies delete ---


@pytest.fixture
def directory(study: Study) -> Path:
    """The directory of a closed study."""
    study.close()
    return Path(str(study.directory))


def test_links_are_not_followed_to_delete(
    directory: Path, victim: Path, shown: Callable[..., str]
) -> None:
    linked = directory.with_name('linked')
    linked.symlink_to(directory)
    with pytest.raises(UserError, match='linked is a symbolic link: name the directory'):
        shown('delete', linked, '--yes')
    (trial,) = (directory / 'trials').iterdir()
    (trial / 'link').symlink_to(victim)
    moved = trial.rename(directory.with_name('moved'))
    trial.symlink_to(moved)
    for argv, message in ((['--yes'], f'no search wrote:\n  {trial}'), (['1', '--yes'], 'link')):
        with pytest.raises(UserError, match=message):
            shown('delete', directory, *argv)
    trial.unlink()
    moved.rename(trial)
    shown('delete', directory, '--yes')
    assert not directory.exists()


def test_files_of_others_stay(directory: Path, shown: Callable[..., str]) -> None:
    before = content(directory)
    for name in ('notes.txt', 'trials/notes.txt', 'best-1.py'):
        (directory / name).write_text('mine')
        with pytest.raises(UserError, match=f'files that no search wrote:\n  {directory / name}$'):
            shown('delete', directory, '--yes')
        (directory / name).unlink()
    assert content(directory) == before
    for name in ('best-1', 'logs', 'replaced_trials_1/0001-x', 'study.db-1f2e'):
        (directory / name).mkdir(parents=True)
    assert shown('delete', directory, '--yes') == f'Deleted: {directory}.\n'


@pytest.mark.parametrize('argv', [[], [1]], ids=['study', 'trial'])
def test_a_deletion_is_finished_after_a_kill(
    directory: Path,
    shown: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    argv: list[object],
) -> None:
    def killed(path: Path) -> None:
        next(each for each in Path(path).rglob('*') if each.is_file()).unlink()
        raise KeyboardInterrupt

    (trial,) = (directory / 'trials').iterdir()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr('paxtune.storage.deletion.shutil.rmtree', killed)
        shown('delete', directory, *argv, '--yes')
    # What is left is no study, and no trial.
    assert not (trial if argv else directory).exists()
    assert argv or 'no studies' in shown('list', directory.parent)
    assert shown('delete', directory, *argv, '--yes').startswith('Deleted: ')
    assert not [name for name in os.listdir((trial if argv else directory).parent) if 'del' in name]


# --- Values ---


@pytest.mark.parametrize(
    'fields',
    [
        {'value': '[' * 100_000},
        {'value': '{"_type": ' * 50_000},
        {'value': '[]'},
        {'value': '9' * 10_000},
        {'search': '{"a": ' * 50_000},
        {'priors': 1},
    ],
    ids=lambda fields: str(fields)[:20],
)
def test_huge_and_deep_values_of_a_study_are_refused_in_one_line(
    directory: Path, shown: Callable[..., str], fields: dict[str, object]
) -> None:
    with load_study(directory, read_only=False) as study:
        rewrite_study(study, **fields)
    (row,) = json.loads(shown('list', directory, '--format=json'))
    assert row['problem']
    for name in ('show', 'trials', 'export', 'best'):
        with pytest.raises(UserError):
            shown(name, directory)


@pytest.mark.parametrize('attempt', [10**6, 0, -1])
def test_a_trial_with_an_impossible_number_of_attempts_is_left_out(
    directory: Path,
    shown: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    attempt: int,
) -> None:
    # It is written, and then read.
    with load_study(directory, read_only=False) as study, contextlib.suppress(DamagedRecordError):
        rewrite(study, 1, attempt=attempt)
    assert 'trials' in shown('show', directory)
    assert 'trial 1 is left out: the record of trial 1 is damaged' in caplog.text


def test_a_deep_record_of_a_trial_is_left_out_of_a_recovery(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    with open_study(tmp_path, toy(search=functions.search(budget=Budget(1)))):
        (tmp_path / 'trials' / '0001-x').mkdir(parents=True)
    (tmp_path / 'trials' / '0001-x' / 'trial.json').write_text('[' * 100_000)
    (tmp_path / 'study.db').unlink()
    assert 'cannot be read, and is left out' in shown('recover', tmp_path)
