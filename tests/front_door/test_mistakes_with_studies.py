"""Studies that are lost, damaged, changed, or read elsewhere."""

import os
import shutil
from pathlib import Path

import pytest

from tests.front_door.files import content, edit
from tests.front_door.terminal import run

pytestmark = pytest.mark.slow

SEARCH = ('-m', 'paxtune.search', '--exp=my_fit.Fit')
STUDY = 'runs/my_fit.Fit'
TRIALS = ('-m', 'paxtune.studies', 'trials', STUDY)
RECOVER = ['-m', 'paxtune.studies', 'recover', STUDY]


def rows(text: str) -> list[list[str]]:
    """The trials of a table."""
    return [line.split() for line in text.splitlines() if line[:1].isdigit()]


@pytest.mark.parametrize('is_there', [False, True], ids=['deleted', 'empty'])
def test_a_lost_study_is_not_mixed_with_a_changed_one_and_recovered(
    fitted: Path, is_there: bool
) -> None:
    before = rows(run(fitted, *TRIALS).passed().text)
    (fitted / STUDY / 'study.db').unlink()
    if is_there:
        (fitted / STUDY / 'study.db').touch()
    trials = content(fitted / STUDY / 'trials')
    edit(fitted / 'my_fit.py', 'Line(batch_size=8, is', 'Line(batch_size=16, is')
    shown = run(fitted, *SEARCH)
    assert f'{STUDY} has the trials of another study' in shown.refused()
    assert shown.commands == [RECOVER]
    assert content(fitted / STUDY / 'trials') == trials
    assert 'Recovered 3 trials (3 completed)' in run(fitted, *shown.commands[0]).passed().words
    changed = run(fitted, *SEARCH).refused()
    assert changed.startswith(f'{STUDY} holds a study of another experiment.')
    assert 'train_input.batch_size: 8 → 16' in changed
    edit(fitted / 'my_fit.py', 'Line(batch_size=16, is', 'Line(batch_size=8, is')
    done = run(fitted, *SEARCH, '--num_trials=4').passed()
    assert '(4 completed)' in done.words
    assert rows(run(fitted, *TRIALS).passed().text)[:3] == before


def test_a_broken_study_names_the_command_that_recovers_it(fitted: Path) -> None:
    before = rows(run(fitted, *TRIALS, '--sort=eval/loss').passed().text)
    assert [float(row[1]) for row in before] == sorted(float(row[1]) for row in before)
    (fitted / STUDY / 'study.db').write_bytes(b'broken' * 1000)
    for words in (TRIALS, SEARCH):
        shown = run(fitted, *words)
        assert 'study.db cannot be opened as a study: file is not a database' in shown.refused()
        assert shown.commands == [RECOVER]
    run(fitted, *RECOVER).passed()
    assert rows(run(fitted, *TRIALS, '--sort=eval/loss').passed().text) == before


def test_trials_are_sorted_by_the_printed_header(fitted: Path) -> None:
    shown = run(fitted, *TRIALS, '--sort=learning_rate').passed().text
    rates = [float(row[-1].removeprefix('learning_rate=')) for row in rows(shown)]
    assert rates == sorted(rates) and len(rates) == 3
    refused = run(fitted, *TRIALS, '--sort=lerning_rate').refused()
    assert 'there is no column lerning_rate. Did you mean learning_rate' in refused


def test_a_typo_in_the_name_of_the_experiment_lists_what_is_there(home: Path) -> None:
    for exp, message in {
        'my_fit.Fitt': 'the module my_fit has no Fitt. Did you mean Fit? It has: Fit.',
        'my_fitt.Fit': 'there is no module my_fitt: not in search_spaces, and not on the path',
    }.items():
        refused = run(home, '-m', 'paxtune.search', f'--exp={exp}').refused()
        assert refused.startswith(f'--exp={exp}: {message}')
    assert not (home / 'runs').exists()


def test_a_study_is_read_where_its_classes_cannot_be_imported(fitted: Path) -> None:
    before = rows(run(fitted, *TRIALS).passed().text)
    (fitted / 'my_fit.py').unlink()
    shutil.rmtree(fitted / '__pycache__', ignore_errors=True)
    assert rows(run(fitted, *TRIALS).passed().text) == before
    assert 'my_fit.Fit' in run(fitted, '-m', 'paxtune.studies', 'show', STUDY).passed().words
    run(fitted, '-m', 'paxtune.studies', 'list').passed()
    run(fitted, '-m', 'paxtune.studies', 'export', STUDY, '--out=study.json').passed()
    assert os.path.getsize(fitted / 'study.json') > 1000
    best = run(fitted, '-m', 'paxtune.studies', 'show', STUDY, '--trial=best').passed().words
    missing = 'the classes my_fit.Line, my_fit.Squared are not imported'
    assert f'{missing}: pass --exp=my_fit.Fit, or import my_fit in Python' in best
    assert missing in run(fitted, '-m', 'paxtune.studies', 'retry', STUDY, '1').refused()
