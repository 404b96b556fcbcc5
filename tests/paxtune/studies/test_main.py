"""`python -m paxtune.studies`: what it shows of a study, in all forms."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyglove as pg
import pytest

from paxtune import Budget
from paxtune.command_line import summary
from paxtune.config.search import Search
from paxtune.storage.open_study import load_study, open_study
from paxtune.studies.__main__ import main
from tests.factories.studies import ask, best, read_csv
from tests.factories.toys import LOSS
from tests.factories.tunables import Rates
from tests.servers.processes import ROOT, command
from trainer.symbolic.errors import UserError

EXP = '--exp=tests.factories.toys.toy'


# --- show ---


def test_show_prints_the_search_and_its_results(
    some_studies: Path, shown: Callable[..., str]
) -> None:
    content = json.loads(shown('show', some_studies / 'mixed', '--format=json'))
    assert content['experiment'] == 'tests.factories.toys.Toy'
    assert content['algorithm'] == 'RandomSearch'
    assert content['rewards'] == [{'label': 'loss', 'goal': 'minimize'}]
    assert content['trials']['infeasible'] == 2
    assert content['done'] is None
    assert content['decisions'][0] == {
        'path': 'rate', 'legal': 'a number from 0.0001 to 0.1', 'scale': 'log', 'condition': '',
    }  # fmt: skip
    assert [row['trial'] for row in content['best']] == [3]
    assert content['infeasible'] == [{'count': 2, 'reason': 'the training loss is nan at step 7'}]
    budgets = {row['budget']: (row['used'], row['limit']) for row in content['budgets']}
    assert budgets['trials'] == (8, 9)
    assert budgets['failures'] == (1, None)
    fields = {
        row['field']: row['value']
        for row in read_csv(shown('show', some_studies / 'mixed', '--format=csv'))
    }
    assert {*fields} == {*content}
    assert json.loads(fields['best']) == content['best']


def test_show_for_people(some_studies: Path, shown: Callable[..., str]) -> None:
    with load_study(some_studies / 'mixed') as study:
        decisions = best(study).decisions
    out = shown('show', some_studies / 'mixed')
    assert 'done        no\n' in out
    assert 'trials      3 completed, 1 stopped, 2 infeasible, 1 active, 1 requested\n' in out
    assert 'layer.heads  one of 1, 2, 4' in out
    assert 'best: trial 3' in out
    assert repr(decisions['rate']) in out
    assert 'it has all of its 5 trials' in shown('show', some_studies / 'deep' / 'er' / 'done')
    assert 'Trials that no other is better than' in shown('show', some_studies / 'front')
    assert 'best' not in shown('show', some_studies / 'measured')


# --- best ---


def test_best_trials_come_best_first(some_studies: Path, shown: Callable[..., str]) -> None:
    content = json.loads(shown('best', some_studies / 'mixed', '--top=9', '--format=json'))
    assert [row['trial'] for row in content['trials']] == [3, 1, 2]
    assert content['train'] is None
    (row,) = read_csv(shown('best', some_studies / 'mixed', '--format=csv'))
    assert (row['trial'], row['loss']) == ('3', '0.1')


def test_the_best_of_several_objectives_is_the_front(
    some_studies: Path, shown: Callable[..., str]
) -> None:
    content = json.loads(shown('best', some_studies / 'front', '--format=json'))
    assert [row['trial'] for row in content['trials']] == [4, 5]
    with pytest.raises(UserError, match='--top: the study has 2 objectives'):
        shown('best', some_studies / 'front', '--top=2')
    assert shown('best', some_studies / 'measured') == 'No trial was completed yet.\n'


def test_best_says_how_to_train_it_as_the_search_does(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    with open_study(tmp_path / 'a study', Rates()) as study:
        for loss in (3.0, 2.0):
            trial = ask(study)
            trial.report(6, {'eval/log_pplx': loss})
            trial.complete()
        exp = 'tests.factories.tunables.Rates'
        command = summary(study, exp).splitlines()[-1].strip()
    assert shlex.split(command)[-1].endswith('a study/best-2')
    assert shown('best', tmp_path / 'a study', f'--exp={exp}').splitlines()[-1].strip() == command
    content = json.loads(shown('best', tmp_path / 'a study', '--format=json'))
    assert content['train'] == command.replace(f' --exp={exp}', '')


# --- diff ---


def test_diff_is_what_differs_in_the_experiments(
    some_studies: Path, shown: Callable[..., str]
) -> None:
    content = json.loads(shown('diff', some_studies / 'mixed', 1, 3, '--format=json'))
    assert content['left'] == {'trial': 1, 'state': 'completed', 'rewards': {'loss': 0.5}}
    assert content['right']['rewards'] == {'loss': 0.1}
    with load_study(some_studies / 'mixed') as study:
        left, right = (study.trial(number).decisions for number in (1, 3))
    rows = {row['path']: row for row in content['differences']}
    assert rows['rate'] == {'path': 'rate', 'left': left['rate'], 'right': right['rate']}
    assert 'search' not in str([*rows])
    as_csv = read_csv(shown('diff', some_studies / 'mixed', 1, 3, '--format=csv'))
    assert [row['path'] for row in as_csv] == [*rows, 'loss']
    assert f'{left["rate"]:.6g}' in shown('diff', some_studies / 'mixed', 1, 3)


def test_diff_of_infeasible_and_equal_trials(some_studies: Path, shown: Callable[..., str]) -> None:
    content = json.loads(shown('diff', some_studies / 'mixed', 5, 1, '--format=json'))
    assert content['left']['rewards'] == {}
    assert 'Their experiments are equal.' in shown('diff', some_studies / 'mixed', 2, 2)
    with pytest.raises(UserError, match='has no trial 99: it has 1 to 8'):
        shown('diff', some_studies / 'mixed', 1, 99)


# --- Forms ---


def test_a_terminal_gets_a_table_of_its_width(
    some_studies: Path, shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('FORCE_COLOR', '1')
    monkeypatch.setenv('COLUMNS', '100')
    monkeypatch.setenv('NO_COLOR', '1')
    heading, rule, *_ = shown('trials', some_studies / 'mixed').splitlines()
    assert rule == '─' * 100
    assert 'trial' in heading


# --- As a person runs it ---


@pytest.mark.slow
def test_list_and_show_need_no_classes_and_a_change_does(some_studies: Path) -> None:
    assert '8/9' in command('paxtune.studies', 'list', str(some_studies)).stdout
    assert command('paxtune.studies', 'show', str(some_studies / 'mixed')).returncode == 0
    without = command('paxtune.studies', 'confirm', str(some_studies / 'mixed'))
    assert without.returncode == 2
    assert without.stderr.startswith('error: ')
    assert 'are not imported: import tests.factories.to' in without.stderr
    assert 'Traceback' not in without.stderr


@pytest.mark.slow
def test_a_study_is_watched_without_its_classes(some_studies: Path) -> None:
    done = some_studies / 'deep' / 'er' / 'done'
    out = command('paxtune.studies', 'show', str(done), '--watch').stdout
    assert '5 of 5 trials: 5 completed; best: trial ' in out
    assert out.endswith('; the study is done\n')


@pytest.mark.slow
def test_with_exp_classes_are_known_and_who_reads_may_leave(some_studies: Path) -> None:
    show = shlex.join(
        [sys.executable, '-m', 'paxtune.studies', 'trials', str(some_studies / 'mixed'), EXP]
    )
    shell = f'{show} | true; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ['bash', '-c', shell], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ('0\n', '')


@pytest.mark.parametrize(
    'flags',
    [
        [],
        ['shw', 'x'],
        ['show'],
        ['diff', 'x', 'one', '2'],
        ['trials', 'x', '--limit=0'],
        ['trials', 'x', '--state=lost'],
        ['list', '--format=xml'],
        ['show', 'x', '--watch', '--interval=0'],
        ['show', 'x', '--vizier_endpoint=here:1'],
        ['delete', 'x', '--yes', 'all'],
        ['show', 'x', '--exp', 'a.b', 'c'],
    ],
)
def test_bad_flags_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(flags)
    assert caught.value.code == 2
    assert 'usage: ' in capsys.readouterr().err


@pytest.mark.parametrize('name', ['garbage', 'torn', 'missing', 'none'])
@pytest.mark.parametrize('what', ['show', 'stop', 'export'])
def test_a_directory_without_a_study_is_refused(
    some_studies: Path, tmp_path: Path, shown: Callable[..., str], name: str, what: str
) -> None:
    directory = tmp_path / name
    if name != 'missing':
        directory.mkdir()
    if name == 'garbage':
        (directory / 'study.db').write_text('this is no database')
    if name == 'torn':
        whole = (some_studies / 'mixed' / 'study.db').read_bytes()
        (directory / 'study.db').write_bytes(whole[:20_000])
    with pytest.raises(UserError, match=name):
        shown(what, directory)
    assert directory.exists() == (name != 'missing')
    assert (directory / 'study.db').exists() == (name in ('garbage', 'torn'))


def test_a_sweep_without_rewards_is_shown(some_studies: Path, shown: Callable[..., str]) -> None:
    rows = json.loads(shown('trials', some_studies / 'measured', '--sort=loss', '--format=json'))
    losses = [row['metrics.loss'] for row in rows]
    assert losses == sorted(losses)


def test_a_study_of_a_function_needs_no_exp(tmp_path: Path, shown: Callable[..., str]) -> None:
    space = pg.Dict(x=pg.oneof([1, 2, 3]))
    with open_study(tmp_path, space, search=Search(LOSS, Budget(3))) as study:
        while (trial := study.ask()) is not None:
            study.tell(trial, {'loss': trial.materialize().x})
    assert json.loads(shown('show', tmp_path, '--format=json'))['experiment'].endswith('Dict')
    content = json.loads(shown('best', tmp_path, '--format=json'))
    assert content['trials'][0]['decisions.x'] == 1
    assert content['train'] is None
