"""`python -m paxtune.studies`: what it shows."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import Budget, studies
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.reports.overview import Overview
from paxtune.reports.tables import Table, to_csv, to_text
from paxtune.search import summary
from paxtune.storage.open_study import load_study, open_study
from paxtune.study import export
from paxtune.study.record import Status
from paxtune.study.study import Study
from paxtune.study.transitions import WorkerLoss
from tests.paxtune.studies import ask, best, finish, read_csv, run
from tests.paxtune.toys import LOSS, search, toy
from tests.paxtune.tunables import Rates
from tests.processes import ROOT, command
from trainer.symbolic.errors import UserError

OBJECTIVES = Objectives([LOSS, MetricReward('maximize', 'accuracy')])
EXP = '--exp=tests.paxtune.toys.toy'


def mixed(directory: Path) -> None:
    """Seven trials, one of each outcome at least; 3 is the best."""
    with open_study(directory, toy(search=search(budget=Budget(9)))) as study:
        for loss in (0.5, 0.75, 0.1):
            trial = ask(study)
            trial.report(10, {'loss': loss, 'accuracy': 1 - loss})
            trial.complete()
        trial = ask(study)
        trial.report(10, {'loss': 0.01})
        trial.stop('worse than others')
        ask(study).fail('the training loss is nan at step 7', is_error=True)
        ask(study).fail('the training loss is nan at step 12')
        ask(study).report(10, {'loss': 0.02})
        study.add({'rate': 0.01})


@pytest.fixture(scope='module')
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies, made once; tests leave them as they are."""
    root = tmp_path_factory.mktemp('studies')
    mixed(root / 'mixed')
    with open_study(root / 'deep' / 'er' / 'done', toy()) as study:
        run(study)
    with open_study(root / 'front', toy(search=search(objective=OBJECTIVES))) as study:
        for loss, accuracy in ((0.5, 0.5), (0.25, 0.25), (0.75, 0.25), (0.125, 0.5), (1, 0.75)):
            trial = ask(study)
            trial.report(1, {'loss': loss, 'accuracy': accuracy})
            trial.complete()
    with open_study(root / 'measured', toy(search=search(objective=None))) as study:
        run(study)
    return root


# --- list ---


def test_list_prints_every_study_below(made: Path, shown: Callable[..., str]) -> None:
    rows = json.loads(shown('list', made, '--format=json'))
    assert [Path(row['study']).relative_to(made) for row in rows] == [
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
    made: Path, shown: Callable[..., str]
) -> None:
    as_json = json.loads(shown('list', made, '--format=json'))
    as_csv = read_csv(shown('list', made, '--format=csv'))
    assert {tuple(row) for row in as_json} == {tuple(row) for row in as_csv}
    assert float(as_csv[0]['best']) == as_json[0]['best']
    table = shown('list', made)
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
    assert 'not made by this version of paxtune' in rows['old']['problem']
    assert rows['old']['trials'] is None
    assert shown('list', tmp_path).count('\n') == 6


def test_list_of_nothing(tmp_path: Path, shown: Callable[..., str]) -> None:
    assert shown('list', tmp_path) == f'There are no studies in {tmp_path} and below.\n'
    assert json.loads(shown('list', tmp_path, '--format=json')) == []
    with pytest.raises(UserError, match='nowhere: there is no such directory'):
        shown('list', tmp_path / 'nowhere')


def _add_hours(study: Study) -> None:
    finish(trial := ask(study))
    trial.set_time(3600.0, 2)


def _exhaust(study: Study) -> None:
    while (trial := study.suggest()) is not None:
        finish(trial)


@pytest.mark.parametrize(
    ('fields', 'act', 'is_done'),
    [
        ({}, run, True),
        ({'budget': Budget(2)}, lambda study: finish(ask(study)), False),
        ({'budget': Budget(1)}, ask, False),
        ({'budget': Budget(5, target_reward=0.5)}, lambda study: finish(ask(study)), True),
        ({'budget': Budget(5, target_reward=1e-9)}, lambda study: finish(ask(study)), False),
        ({'budget': Budget(5, hours=1.0)}, _add_hours, True),
        ({'budget': Budget(5, hours=1.5)}, _add_hours, False),
        ({'budget': Budget(5, device_hours=1.5)}, _add_hours, True),
        ({'budget': Budget(20), 'objective': OBJECTIVES}, run, True),
        ({'objective': None}, run, True),
    ],
)
@pytest.mark.parametrize('is_finite', [False, True])
@pytest.mark.fast(8)
def test_the_overview_says_what_the_study_says(
    tmp_path: Path,
    fields: dict[str, Any],
    act: Callable[[Study], Any],
    is_done: bool,
    is_finite: bool,
) -> None:
    space = {'rate': pg.oneof([0.1, 0.2]), 'layer': None, 'widths': pg.oneof([1, 2])}
    value = toy(search=search(**fields), **(space if is_finite else {}))
    with open_study(tmp_path, value) as study:
        act(study)
        found = Overview.read(tmp_path / 'study.db')
        assert found.is_done == study.is_done == is_done
        assert found.num_trials == study.num_trials
        assert sum(found.counts.values()) == len(study.trials)
        if len(study.rewards) == 1:
            assert found.best == (study.best.reward if study.best else None)
        if len(study.rewards) > 1:
            assert found.front == len(study.pareto_front)


# --- show ---


def test_show_prints_the_search_and_its_results(made: Path, shown: Callable[..., str]) -> None:
    content = json.loads(shown('show', made / 'mixed', '--format=json'))
    assert content['experiment'] == 'tests.paxtune.toys.Toy'
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
        for row in read_csv(shown('show', made / 'mixed', '--format=csv'))
    }
    assert {*fields} == {*content}
    assert json.loads(fields['best']) == content['best']


def test_show_for_people(made: Path, shown: Callable[..., str]) -> None:
    with load_study(made / 'mixed') as study:
        decisions = best(study).decisions
    out = shown('show', made / 'mixed')
    assert 'done        no\n' in out
    assert 'trials      3 completed, 1 stopped, 2 infeasible, 1 active, 1 requested\n' in out
    assert 'layer.heads  one of 1, 2, 4' in out
    assert 'best: trial 3' in out
    assert repr(decisions['rate']) in out
    assert 'it has all of its 5 trials' in shown('show', made / 'deep' / 'er' / 'done')
    assert 'Trials that no other is better than' in shown('show', made / 'front')
    assert 'best' not in shown('show', made / 'measured')


# --- trials ---


def test_trials_are_rows_with_all_that_is_known(made: Path, shown: Callable[..., str]) -> None:
    rows = read_csv(shown('trials', made / 'mixed', '--format=csv'))
    with load_study(made / 'mixed') as study:
        frame = study.to_pandas()
        assert list(rows[0]) == ['trial', *frame.columns]
        for row, trial in zip(rows, study.trials, strict=True):
            assert (int(row['trial']), row['state']) == (trial.id, trial.state)
            assert row['loss'] == (repr(trial.reward) if trial.rewards else '')
            assert float(row['decisions.rate']) == trial.decisions['rate']
            assert row['decisions.layer.heads'] == str(trial.decisions.get('layer.heads', ''))
            assert row['reason'] == (trial.reason or '')
    as_json = json.loads(shown('trials', made / 'mixed', '--format=json'))
    assert as_json[3]['stopped'] is True
    assert as_json[3]['metrics.loss'] == 0.01
    assert as_json[4]['loss'] is None


@pytest.mark.parametrize(
    ('flags', 'numbers'),
    [
        ([], [1, 2, 3, 4, 5, 6, 7, 8]),
        (['--state=completed'], [1, 2, 3]),
        (['--state=stopped'], [4]),
        (['--state=requested'], [8]),
        (['--sort=reward', '--limit=3'], [4, 3, 1]),
        (['--sort=-loss', '--limit=2', '--state=completed'], [2, 1]),
        (['--sort=accuracy', '--limit=3'], [2, 1, 3]),
        (['--sort=-trial', '--limit=2'], [8, 7]),
        (['--sort=state', '--limit=1'], [7]),
    ],
)
def test_trials_are_chosen_and_sorted(
    made: Path, shown: Callable[..., str], flags: list[str], numbers: list[int]
) -> None:
    assert tuple(Status) == studies.STATES
    rows = json.loads(shown('trials', made / 'mixed', '--format=json', *flags))
    assert [row['trial'] for row in rows] == numbers


def test_the_best_reward_comes_first_whatever_the_goal(
    made: Path, shown: Callable[..., str]
) -> None:
    rows = json.loads(shown('trials', made / 'front', '--sort=accuracy', '--format=json'))
    assert [row['accuracy'] for row in rows] == [0.75, 0.5, 0.5, 0.25, 0.25]


def test_an_unknown_column_is_refused(made: Path, shown: Callable[..., str]) -> None:
    with pytest.raises(UserError, match=r'--sort=lss: .* Did you mean loss'):
        shown('trials', made / 'mixed', '--sort=lss')


def test_decisions_are_short_in_a_table(made: Path, shown: Callable[..., str]) -> None:
    lines = shown('trials', made / 'mixed').splitlines()
    assert len(lines) == 9
    assert lines[0].split()[:5] == ['trial', 'state', 'loss', 'rate', 'layer']
    assert lines[4].split()[1] == 'stopped'
    assert 'worse than others' in lines[4]
    assert shown('trials', made / 'deep' / 'er' / 'done', '--state=stopped') == (
        'There are no such trials.\n'
    )


# --- show --trial ---


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """A study whose first trial was lost, tried again, and stopped; the second one runs."""
    with open_study(tmp_path / 'lost', toy()) as study:
        trial = ask(study)
        trial.report(10, {'loss': 0.5})
        trial.lose(WorkerLoss('its worker was ended by SIGSEGV', counts=True, is_dead=True), 3)
        again = ask(study)
        again.add_event('resumed', 8)
        again.stop('worse than others')
        ask(study)
    return tmp_path / 'lost'


def test_the_history_of_a_trial(lost: Path, shown: Callable[..., str]) -> None:
    with load_study(lost) as study:
        trial = study.trial(1)
        content = export.content(trial)
        worker = trial.history[0]['worker']
    assert json.loads(shown('show', lost, '--trial=1', '--format=json')) == content
    rows = read_csv(shown('show', lost, '--trial=1', '--format=csv'))
    assert [(row['event'], row['attempt'], row['worker'], row['step']) for row in rows] == [
        ('claimed', '1', worker, ''), ('failed', '1', worker, ''), ('claimed', '2', worker, ''),
        ('resumed', '2', worker, '8'), ('ended', '2', worker, ''),
    ]  # fmt: skip
    assert rows[1]['detail'] == 'its worker was ended by SIGSEGV'
    assert [row['time'] for row in rows] == [event['time'] for event in content['history']]


def test_the_history_of_a_trial_for_people(lost: Path, shown: Callable[..., str]) -> None:
    out = shown('show', lost, '--trial=1')
    facts, _, history = out.partition('History\n')
    assert re.search(r'^state +stopped$', facts, re.MULTILINE)
    assert re.search(r'^attempt +2$', facts, re.MULTILINE)
    assert re.search(r'^measured at step +10$', facts, re.MULTILINE)
    assert re.search(r'^rate +0\.', facts, re.MULTILINE)
    assert 'worker' not in facts
    lines = history.splitlines()
    assert len(lines) == 6
    assert lines[2].endswith('  its worker was ended by SIGSEGV')
    assert lines[5].endswith('  stopped: worse than others')
    assert re.search(r'^worker +\S', shown('show', lost, '--trial=2'), re.MULTILINE)
    with open_study(lost, toy()) as study:
        study.add({})
    assert shown('show', lost, '--trial=3').endswith('Nothing has happened to trial 3 yet.\n')
    with pytest.raises(UserError, match='has no trial 4: it has 1 to 3'):
        shown('show', lost, '--trial=4')


def test_several_attempts_are_shown(made: Path, lost: Path, shown: Callable[..., str]) -> None:
    heading, first, second = (line.split() for line in shown('trials', lost).splitlines())
    assert heading[:3] == ['trial', 'state', 'attempt']
    assert (first[2], second[2]) == ('2', '1')
    assert 'attempt' not in shown('trials', made / 'mixed')
    rows = json.loads(shown('trials', made / 'mixed', '--format=json'))
    assert {row['attempt'] for row in rows} == {1}


def test_watching_is_for_people(lost: Path, shown: Callable[..., str]) -> None:
    for flags in (['--trial=1'], ['--format=json']):
        with pytest.raises(UserError, match='--watch shows the whole study, to people'):
            shown('show', lost, '--watch', *flags)
    with pytest.raises(UserError, match='--interval says how often --watch looks'):
        shown('show', lost, '--interval=3')


# --- best ---


def test_best_trials_come_best_first(made: Path, shown: Callable[..., str]) -> None:
    content = json.loads(shown('best', made / 'mixed', '--top=9', '--format=json'))
    assert [row['trial'] for row in content['trials']] == [3, 1, 2]
    assert content['train'] is None
    (row,) = read_csv(shown('best', made / 'mixed', '--format=csv'))
    assert (row['trial'], row['loss']) == ('3', '0.1')


def test_the_best_of_several_objectives_is_the_front(made: Path, shown: Callable[..., str]) -> None:
    content = json.loads(shown('best', made / 'front', '--format=json'))
    assert [row['trial'] for row in content['trials']] == [4, 5]
    with pytest.raises(UserError, match='--top: the study has 2 objectives'):
        shown('best', made / 'front', '--top=2')
    assert shown('best', made / 'measured') == 'No trial was completed yet.\n'


@pytest.mark.slow
def test_best_says_how_to_train_it_as_the_search_does(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    with open_study(tmp_path / 'a study', Rates()) as study:
        for loss in (3.0, 2.0):
            trial = ask(study)
            trial.report(6, {'eval/log_pplx': loss})
            trial.complete()
        exp = 'tests.paxtune.tunables.Rates'
        command = summary(study, exp).splitlines()[-1].strip()
    assert shlex.split(command)[-1].endswith('a study/best-2')
    assert shown('best', tmp_path / 'a study', f'--exp={exp}').splitlines()[-1].strip() == command
    content = json.loads(shown('best', tmp_path / 'a study', '--format=json'))
    assert content['train'] == command.replace(f' --exp={exp}', '')


# --- diff ---


def test_diff_is_what_differs_in_the_experiments(made: Path, shown: Callable[..., str]) -> None:
    content = json.loads(shown('diff', made / 'mixed', 1, 3, '--format=json'))
    assert content['left'] == {'trial': 1, 'state': 'completed', 'rewards': {'loss': 0.5}}
    assert content['right']['rewards'] == {'loss': 0.1}
    with load_study(made / 'mixed') as study:
        left, right = (study.trial(number).decisions for number in (1, 3))
    rows = {row['path']: row for row in content['differences']}
    assert rows['rate'] == {'path': 'rate', 'left': left['rate'], 'right': right['rate']}
    assert 'search' not in str([*rows])
    as_csv = read_csv(shown('diff', made / 'mixed', 1, 3, '--format=csv'))
    assert [row['path'] for row in as_csv] == [*rows, 'loss']
    assert f'{left["rate"]:.6g}' in shown('diff', made / 'mixed', 1, 3)


def test_diff_of_infeasible_and_equal_trials(made: Path, shown: Callable[..., str]) -> None:
    content = json.loads(shown('diff', made / 'mixed', 5, 1, '--format=json'))
    assert content['left']['rewards'] == {}
    assert 'Their experiments are equal.' in shown('diff', made / 'mixed', 2, 2)
    with pytest.raises(UserError, match='has no trial 99: it has 1 to 8'):
        shown('diff', made / 'mixed', 1, 99)


# --- Forms ---


def test_a_table_shows_everything_and_moves_no_cursor() -> None:
    rows = [
        {'name': 'a\x1b[2J\nb\t', 'n': 0.1234567, 'unused': None},
        {'name': '漢字' * 40, 'n': True},
    ]
    lines = to_text(Table(rows, ['name', 'n', 'unused'], 'Title')).splitlines()
    assert lines[0] == 'Title'
    assert lines[1].split() == ['name', 'n']
    assert lines[2].startswith('a�[2J b ')
    assert lines[2].endswith('  0.123457')
    assert lines[3] == '漢字' * 40 + '  yes'


def test_csv_keeps_every_bit() -> None:
    (row,) = read_csv(to_csv([{'x': 0.1 + 0.2, 'text': 'a,"b"\nc'}], ['x', 'text', 'none']))
    assert float(row['x']) == 0.1 + 0.2
    assert row['text'] == 'a,"b"\nc'
    assert row['none'] == ''


def test_a_terminal_gets_lines_around_the_table(
    made: Path, shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('FORCE_COLOR', '1')
    monkeypatch.setenv('COLUMNS', '100')
    monkeypatch.setenv('NO_COLOR', '1')
    first, heading, *_ = shown('trials', made / 'mixed').splitlines()
    assert first.startswith('┏━━━')
    assert len(first) <= 100
    assert 'trial' in heading


# --- As a person runs it ---


@pytest.mark.slow
def test_list_needs_no_classes_and_show_does(made: Path) -> None:
    assert '8/9' in command('paxtune.studies', 'list', str(made)).stdout
    without = command('paxtune.studies', 'show', str(made / 'mixed'))
    assert without.returncode == 2
    assert without.stderr.startswith('error: ')
    assert '--exp' in without.stderr
    assert 'Traceback' not in without.stderr


@pytest.mark.slow
def test_a_study_is_watched_without_its_classes(made: Path) -> None:
    done = made / 'deep' / 'er' / 'done'
    out = command('paxtune.studies', 'show', str(done), '--watch').stdout
    assert '5 of 5 trials, 5 completed, best: trial ' in out
    assert out.endswith(', the study is done\n')


@pytest.mark.slow
def test_with_exp_classes_are_known_and_who_reads_may_leave(made: Path) -> None:
    show = shlex.join([sys.executable, '-m', 'paxtune.studies', 'trials', str(made / 'mixed'), EXP])
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
@pytest.mark.fast(3)
def test_bad_flags_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        studies.main(flags)
    assert caught.value.code == 2
    assert 'usage: ' in capsys.readouterr().err


@pytest.mark.parametrize('name', ['garbage', 'torn', 'missing', 'none'])
@pytest.mark.parametrize('what', ['show', 'stop', 'export'])
def test_a_directory_without_a_study_is_refused(
    made: Path, tmp_path: Path, shown: Callable[..., str], name: str, what: str
) -> None:
    directory = tmp_path / name
    if name != 'missing':
        directory.mkdir()
    if name == 'garbage':
        (directory / 'study.db').write_text('this is no database')
    if name == 'torn':
        whole = (made / 'mixed' / 'study.db').read_bytes()
        (directory / 'study.db').write_bytes(whole[:20_000])
    with pytest.raises(UserError, match=name):
        shown(what, directory)
    assert directory.exists() == (name != 'missing')
    assert (directory / 'study.db').exists() == (name in ('garbage', 'torn'))


def test_a_sweep_without_rewards_is_shown(made: Path, shown: Callable[..., str]) -> None:
    rows = json.loads(shown('trials', made / 'measured', '--sort=loss', '--format=json'))
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
