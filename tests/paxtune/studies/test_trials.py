"""`python -m paxtune.studies trials` and `show --trial`."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyglove as pg
import pytest

from paxtune.objectives.rewards import TunasAbsolute
from paxtune.storage.open_study import load_study, open_study
from paxtune.studies import looking
from paxtune.study import export
from paxtune.study.record import Status
from paxtune.study.transitions import WorkerLoss
from tests.factories.studies import ask, finish, lose, read_csv
from tests.factories.toys import Block, search, toy
from trainer.symbolic.errors import UserError

# --- trials ---


def test_trials_are_rows_with_all_that_is_known(
    some_studies: Path, shown: Callable[..., str]
) -> None:
    rows = read_csv(shown('trials', some_studies / 'mixed', '--format=csv'))
    with load_study(some_studies / 'mixed') as study:
        frame = study.to_pandas()
        assert list(rows[0]) == ['trial', *frame.columns]
        for row, trial in zip(rows, study.trials, strict=True):
            assert (int(row['trial']), row['state']) == (trial.id, trial.status)
            assert row['loss'] == (repr(trial.reward) if trial.rewards else '')
            assert float(row['decisions.rate']) == trial.decisions['rate']
            assert row['decisions.layer.heads'] == str(trial.decisions.get('layer.heads', ''))
            assert row['reason'] == (trial.reason or '')
    as_json = json.loads(shown('trials', some_studies / 'mixed', '--format=json'))
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
    some_studies: Path, shown: Callable[..., str], flags: list[str], numbers: list[int]
) -> None:
    assert tuple(Status) == looking.STATES
    rows = json.loads(shown('trials', some_studies / 'mixed', '--format=json', *flags))
    assert [row['trial'] for row in rows] == numbers


def test_the_best_reward_comes_first_whatever_the_goal(
    some_studies: Path, shown: Callable[..., str]
) -> None:
    rows = json.loads(shown('trials', some_studies / 'front', '--sort=accuracy', '--format=json'))
    assert [row['accuracy'] for row in rows] == [0.75, 0.5, 0.5, 0.25, 0.25]


def test_an_unknown_column_is_refused(some_studies: Path, shown: Callable[..., str]) -> None:
    with pytest.raises(UserError, match=r'--sort=lss: .* Did you mean loss'):
        shown('trials', some_studies / 'mixed', '--sort=lss')


def test_columns_are_chosen_and_sorted_by_the_printed_name(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    with open_study(tmp_path, toy(layer=Block(pg.oneof([1, 2, 4])), widths=None)) as study:
        for _ in range(3):
            finish(ask(study))
        values = [trial.decisions['layer.heads'] for trial in study.trials]
    flags = ('--columns=trial,heads,metrics', '--sort=-heads')
    as_csv = read_csv(shown('trials', tmp_path, '--format=csv', *flags))
    assert list(as_csv[0]) == ['trial', 'decisions.layer.heads', 'metrics.accuracy', 'metrics.loss']
    assert [float(row['decisions.layer.heads']) for row in as_csv] == sorted(values, reverse=True)
    assert shown('trials', tmp_path, *flags).split()[:3] == ['trial', 'heads', 'accuracy']
    with pytest.raises(UserError, match=r'no column haeds\. Did you mean heads'):
        shown('trials', tmp_path, '--columns=trial,haeds')


def test_a_reward_that_is_no_plain_metric_is_headed_reward(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    label = 'TunasAbsolute(accuracy, loss)'
    objective = TunasAbsolute('accuracy', 'loss', cost_target=1.0)
    with open_study(tmp_path, toy(search=search(objective=objective))) as study:
        finish(ask(study))
        assert label in study.to_pandas()
    assert shown('trials', tmp_path).split()[:3] == ['trial', 'state', 'reward']
    flags = ('--columns=trial,reward', '--sort=reward')
    assert shown('trials', tmp_path, *flags).split()[:2] == ['trial', 'reward']
    assert list(read_csv(shown('trials', tmp_path, '--format=csv', *flags))[0]) == ['trial', label]


def test_decisions_are_short_in_a_table(some_studies: Path, shown: Callable[..., str]) -> None:
    *lines, note = shown('trials', some_studies / 'mixed').splitlines()
    assert note == 'The same in all: seconds=0'
    assert len(lines) == 9
    assert lines[0].split() == ['trial', 'state', 'loss', 'decisions', 'reason']
    assert lines[4].split()[1] == 'stopped'
    assert ' rate=' in lines[4] and ' layer=' in lines[4]
    assert 'worse than others' in lines[4]
    assert shown('trials', some_studies / 'deep' / 'er' / 'done', '--state=stopped') == (
        'There are no such trials.\n'
    )


# --- show --trial ---


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """A study whose first trial was lost, tried again, and stopped; the second one runs."""
    with open_study(tmp_path / 'lost', toy()) as study:
        trial = ask(study)
        trial.report(10, {'loss': 0.5})
        lose(trial, WorkerLoss('its worker was ended by SIGSEGV', counts=True, is_dead=True), 3)
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


def test_several_attempts_are_shown(
    some_studies: Path, lost: Path, shown: Callable[..., str]
) -> None:
    heading, first, second = (line.split() for line in shown('trials', lost).splitlines())
    assert heading[:3] == ['trial', 'state', 'attempt']
    assert (first[2], second[2]) == ('2', '1')
    assert 'attempt' not in shown('trials', some_studies / 'mixed')
    rows = json.loads(shown('trials', some_studies / 'mixed', '--format=json'))
    assert {row['attempt'] for row in rows} == {1}


def test_watching_is_for_people(lost: Path, shown: Callable[..., str]) -> None:
    for flags in (['--trial=1'], ['--format=json']):
        with pytest.raises(UserError, match='--watch shows the whole study as text'):
            shown('show', lost, '--watch', *flags)
    with pytest.raises(UserError, match='--interval is the time between updates of --watch'):
        shown('show', lost, '--interval=3')
