"""`python -m paxtune.studies`: what it changes."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paxtune.config.budget import Budget
from paxtune.running.callbacks import Callback
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.tuner import Paused, Tuner
from paxtune.storage.open_study import load_study, open_study
from paxtune.studies.__main__ import main as studies
from paxtune.study import stop_requests
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import trial_directory
from tests.factories.studies import ask, finish, run
from tests.factories.toys import Toy, search, toy
from trainer.runtime.directory import locked
from trainer.symbolic.errors import UserError

EXP = '--exp=tests.factories.toys.toy'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A study with three completed trials, an infeasible one and an active one."""
    with open_study(tmp_path / 'study', toy(search=search(budget=Budget(9)))) as study:
        for _ in range(3):
            trial = ask(study)
            trial_directory(study.directory, trial.view).mkdir(parents=True)
            finish(trial)
        ask(study).fail('no memory')
        ask(study).report(10, {'loss': 3.0})
    return tmp_path / 'study'


def trials_of(directory: Path) -> list[Trial]:
    with load_study(directory) as study:
        return study.trials


# --- add, retry ---


def test_an_added_trial_runs_next(directory: Path, shown: Callable[..., str]) -> None:
    missing = (
        r'missing:\n  layer\.heads: .*\n  widths.*\n(.*\n)*Give each as PATH=VALUE, or .*--draw'
    )
    with pytest.raises(UserError, match=missing):
        shown('add', directory, 'rate=0.0125', 'layer=Block()')
    assert len(trials_of(directory)) == 5
    out = shown('add', directory, 'rate=0.0125', 'layer=Block()', '--warm_start=1', '--draw')
    assert out.startswith('Trial 6 will run when the search continues, before new suggestions:\n')
    assert '  rate = 0.0125\n' in out
    with load_study(directory, read_only=False) as study:
        finish(ask(study))
        trial = ask(study)
        assert (trial.id, trial.lineage.origin, trial.lineage.warm_start) == (6, 'added', 1)
        assert (trial.decisions['rate'], trial.decisions['layer']) == (0.0125, 'Block')


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['rat=1'], 'rat is no decision of this experiment. Did you mean rate'),
        (['rate=7'], 'rate must be a number from 0.0001 to 0.1'),
        (['rate'], "add: expected path=value, not 'rate'"),
        (['rate=0.01', '--warm_start=77', '--draw'], 'has no trial 77'),
    ],
)
def test_invalid_edits_are_refused(
    directory: Path, shown: Callable[..., str], flags: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        shown('add', directory, *flags)
    assert len(trials_of(directory)) == 5


def test_a_retry_names_the_trial_that_it_repeats(
    directory: Path, shown: Callable[..., str]
) -> None:
    assert shown('retry', directory, 4).startswith('Trial 6 will run')
    *_, repeated, _, trial = trials_of(directory)
    assert (trial.state, trial.lineage.retry_of, trial.lineage.origin) == ('REQUESTED', 4, 'retry')
    assert trial.decisions == repeated.decisions
    with pytest.raises(UserError, match='trial 5 is ACTIVE: only one that has ended'):
        shown('retry', directory, 5)


# --- export, import ---


def test_an_export_is_imported_to_the_last_bit(
    directory: Path, tmp_path: Path, shown: Callable[..., str]
) -> None:
    file = tmp_path / 'study.json'
    assert shown('export', directory, f'--out={file}') == ''
    exported = json.loads(file.read_text())
    assert {*exported} == {'format', 'experiment', 'search', 'data', 'trials'}
    assert exported['experiment']['_type'] == 'tests.factories.toys.Toy'
    assert exported['search']['budget']['trials'] == 9
    assert json.loads(shown('export', directory)) == exported
    open_study(tmp_path / 'new', toy()).close()
    out = shown('import', tmp_path / 'new', file)
    assert out.startswith(
        f'4 of 5 trials were added to {tmp_path / "new"}. The others had not ended'
    )
    assert '0 of 5 trials' in shown('import', tmp_path / 'new', file)
    for old, new in zip(trials_of(directory), trials_of(tmp_path / 'new'), strict=False):
        assert (old.decisions, old.rewards, old.metrics) == (
            new.decisions,
            new.rewards,
            new.metrics,
        )
        assert new.lineage.origin == f'{file}#{old.id}'


def test_an_import_of_other_data_is_warned_of(
    tmp_path: Path, shown: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    with open_study(tmp_path / 'old', toy(), {'train_input': 'abc', 'other': 'x'}) as study:
        run(study)
    shown('export', tmp_path / 'old', f'--out={tmp_path / "file"}')
    open_study(tmp_path / 'new', toy(), {'train_input': 'abd', 'other': 'x'}).close()
    studies(['import', str(tmp_path / 'new'), str(tmp_path / 'file')])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f'warning: {tmp_path / "file"}: the fingerprint of train_input is abc there'
    )


TRIAL: dict[str, Any] = {
    'trial': 1,
    'state': 'completed',
    'reason': None,
    'stopped': False,
    'decisions': {'rate': 0.01, 'layer': 'Dense', 'widths[0]': 1, 'widths[1]': 2},
    'metrics': {'loss': 0.5},
    'seconds': 1.0,
    'devices': 1,
    'measurements': [{'step': 1, 'metrics': {'loss': 0.5}}],
}


def test_the_trial_that_others_are_made_of_is_fine(
    directory: Path, tmp_path: Path, shown: Callable[..., str]
) -> None:
    (tmp_path / 'file').write_text(json.dumps({'trials': [TRIAL, TRIAL]}))
    shown('import', directory, tmp_path / 'file')
    assert trials_of(directory)[-1].reward == 0.5
    assert len(trials_of(directory)) == 6


@pytest.mark.parametrize(
    'content',
    [
        '',
        '[]',
        '{"trials": 1}',
        '{"trials": [1]}',
        '{"trials": [{}]}',
        '[' * 100_000,
        *(
            json.dumps({'trials': [TRIAL, TRIAL | {'trial': 2} | wrong]})
            for wrong in (
                {'decisions': [1]},
                {'metrics': {'loss': 'low'}},
                {'metrics': {'loss': math.nan}},
                {'metrics': {'$reward': 1.0, 'loss': 1.0}},
                {'metrics': None},
                {'measurements': [{'step': 2**70, 'metrics': {}}]},
                {'measurements': [{'step': 1.5, 'metrics': {}}]},
                {'measurements': {'a': 1}},
                {'seconds': 'long'},
                {'devices': -1},
            )
        ),
    ],
)
@pytest.mark.fast(5)
def test_a_file_that_is_no_export_is_refused_whole(
    directory: Path, tmp_path: Path, shown: Callable[..., str], content: str
) -> None:
    (tmp_path / 'file').write_text(content)
    with pytest.raises(UserError, match='file'):
        shown('import', directory, tmp_path / 'file')
    assert len(trials_of(directory)) == 5


def test_files_that_cannot_be_read_or_written_are_refused(
    directory: Path, tmp_path: Path, shown: Callable[..., str]
) -> None:
    with pytest.raises(UserError, match=r'missing\.json: cannot be read'):
        shown('import', directory, tmp_path / 'missing.json')
    with pytest.raises(UserError, match=r'--out=.*: cannot be written'):
        shown('export', directory, f'--out={tmp_path / "no" / "file"}')


# --- stop ---


class Asking(Callback):
    """Runs the command at each measurement of a trial."""

    def __init__(self, tell: Callable[..., str], number: int, *argv: object) -> None:
        self.tell, self.number, self.argv = tell, number, argv
        self.out = ''

    def on_measurement(self, study: Study, trial: Trial, measurement: Any) -> None:
        if trial.id == self.number:
            self.out = self.tell(*self.argv)


def losses(value: Toy) -> Iterator[dict[str, float]]:
    for step in range(1, 4):
        yield {'loss': value.rate / step}


def test_a_trial_is_stopped_while_the_study_runs(tmp_path: Path, shown: Callable[..., str]) -> None:
    asking = Asking(shown, 2, 'stop', tmp_path, 2)
    with open_study(tmp_path, toy(search=search(budget=Budget(3)))) as study:
        Tuner(study, FunctionRunner(losses), [asking]).run()
        assert [trial.status for trial in study.trials] == ['completed', 'stopped', 'completed']
        assert len(study.trials[1].measurements) == 1
    assert asking.out == 'To be stopped at the next measurement: trial 2.\n'


def test_a_study_pauses_and_goes_on(tmp_path: Path, shown: Callable[..., str]) -> None:
    asking = Asking(shown, 2, 'stop', tmp_path)
    with open_study(tmp_path, toy(search=search(budget=Budget(3)))) as study:
        with pytest.raises(Paused, match='studies stop'):
            Tuner(study, FunctionRunner(losses), [asking]).run()
        assert [trial.status for trial in study.trials] == ['completed', 'active']
        Tuner(study, FunctionRunner(losses)).run()
        assert [trial.status for trial in study.trials] == ['completed'] * 3
    assert asking.out == f'The search in {tmp_path} will pause at its next measurement.\n'


def test_a_stop_without_a_search_says_so(directory: Path, shown: Callable[..., str]) -> None:
    assert shown('stop', directory) == (
        f'No search is working in {directory}: there is nothing to pause.\n'
    )
    assert 'the request waits for one' in shown('stop', directory, 5)
    with load_study(directory, read_only=False) as study:
        assert 5 in stop_requests.stopped_trials(study.store)
        stop_requests.resume(study.store)
        assert not stop_requests.is_pause_requested(study.store)
    for number, message in ((99, 'no trial 99'), (4, 'trial 4 is infeasible: it is not running')):
        with pytest.raises(UserError, match=message):
            shown('stop', directory, number)


# --- delete ---


def test_nothing_is_deleted_without_yes(directory: Path, shown: Callable[..., str]) -> None:
    with pytest.raises(UserError, match='nothing was deleted') as caught:
        shown('delete', directory)
    assert f'  {directory / "study.db"}' in str(caught.value)
    with pytest.raises(UserError, match='nothing was deleted') as caught:
        shown('delete', directory, 1, 3)
    assert f'trial 3: {directory / "trials" / "0003-"}' in str(caught.value)
    assert len(trials_of(directory)) == 5
    assert len(list((directory / 'trials').iterdir())) == 3


@pytest.mark.parametrize(
    'flags', [['--yes', EXP, '{}', '1', '3'], ['{}', '--yes', '1', '3'], ['{}', '1', '3', '--yes']]
)
def test_trials_are_deleted_with_their_directories(
    directory: Path, shown: Callable[..., str], flags: list[str]
) -> None:
    filled = [flag.format(directory) for flag in flags]
    assert shown('delete', *filled) == 'Deleted: trial 1, trial 3.\n'
    assert [trial.id for trial in trials_of(directory)] == [2, 4, 5]
    (left,) = (directory / 'trials').iterdir()
    assert left.name.startswith('0002-')


def test_a_trial_whose_number_is_taken_again_is_not_stopped_for_the_old_one(
    directory: Path, shown: Callable[..., str]
) -> None:
    shown('stop', directory, 5)
    shown('delete', directory, 5, '--yes')
    with load_study(directory, read_only=False) as study:
        trial = ask(study)
        assert trial.id == 5
        assert trial.id not in stop_requests.stopped_trials(study.store)


def test_a_trial_that_another_begins_with_stays(directory: Path, shown: Callable[..., str]) -> None:
    shown('add', directory, 'rate=0.01', '--warm_start=2', '--draw')
    with pytest.raises(UserError, match='trial 2 stays: trial 6 is to begin with its weights'):
        shown('delete', directory, 2, '--yes')
    with pytest.raises(UserError, match='has no trial 99'):
        shown('delete', directory, 1, 99, '--yes')
    assert len(trials_of(directory)) == 6
    shown('delete', directory, 2, 6, '--yes')
    assert [trial.id for trial in trials_of(directory)] == [1, 3, 4, 5]


def test_a_study_is_deleted(directory: Path, shown: Callable[..., str]) -> None:
    assert shown('delete', directory, '--yes') == f'Deleted: {directory}.\n'
    assert not directory.exists()
    with pytest.raises(UserError, match='There is no study in'):
        shown('delete', directory, '--yes')
    assert not directory.exists()


def test_a_directory_with_more_in_it_is_not_deleted(
    directory: Path, tmp_path: Path, shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'study.db').write_text('broken')
    with pytest.raises(UserError, match=f'{tmp_path} holds other studies: {directory}'):
        shown('delete', tmp_path, '--yes')
    monkeypatch.chdir(next((directory / 'trials').iterdir()))
    with pytest.raises(UserError, match='holds, the directory that you are in'):
        shown('delete', directory, '--yes')
    monkeypatch.chdir(tmp_path)
    assert shown('delete', 'study', '--yes') == 'Deleted: study.\n'


# --- While a search works there ---


@pytest.mark.parametrize(
    'flags',
    [['add', '{}', 'rate=0.01'], ['retry', '{}', '1'], ['delete', '{}', '1', '--yes'],
     ['delete', '{}', '--yes'], ['import', '{}', '{}/export.json']],
)  # fmt: skip
def test_changes_wait_for_the_search(
    directory: Path, shown: Callable[..., str], flags: list[str]
) -> None:
    (directory / 'export.json').write_text('{"trials": []}')
    with locked(directory), pytest.raises(UserError, match=r'process \d+ is working there'):
        shown(*(flag.format(directory) for flag in flags))
    assert len(trials_of(directory)) == 5
