"""Studies that are lost, damaged, changed, or read elsewhere."""

import os
import shutil
from pathlib import Path

import pytest

from tests.front_door.terminal import run

pytestmark = pytest.mark.slow

SEARCH = ('-m', 'paxtune.search', '--exp=my_fit.Fit')
STUDY = 'runs/my_fit.Fit'
TRIALS = ('-m', 'paxtune.studies', 'trials', STUDY)


def rows(text: str) -> list[list[str]]:
    """The trials of a table."""
    return [line.split() for line in text.splitlines() if line[:1].isdigit()]


def test_a_lost_study_is_recovered_with_the_printed_command(fitted: Path) -> None:
    before = rows(run(fitted, *TRIALS).passed().text)
    (fitted / STUDY / 'study.db').unlink()
    shown = run(fitted, *SEARCH)
    assert f'{STUDY} has the trials of another study' in shown.refused()
    (command,) = shown.commands
    assert command == ['-m', 'paxtune.studies', 'recover', STUDY]
    assert 'Recovered 3 trials (3 completed)' in run(fitted, *command).passed().words
    assert '(4 completed)' in run(fitted, *SEARCH, '--num_trials=4').passed().words
    assert rows(run(fitted, *TRIALS).passed().text)[:3] == before


def test_a_study_is_read_where_its_classes_cannot_be_imported(fitted: Path) -> None:
    before = rows(run(fitted, *TRIALS).passed().text)
    (fitted / 'my_fit.py').unlink()
    shutil.rmtree(fitted / '__pycache__', ignore_errors=True)
    assert rows(run(fitted, *TRIALS).passed().text) == before
    run(fitted, '-m', 'paxtune.studies', 'export', STUDY, '--out=study.json').passed()
    assert os.path.getsize(fitted / 'study.json') > 1000
    best = run(fitted, '-m', 'paxtune.studies', 'show', STUDY, '--trial=best').passed().words
    missing = 'the classes my_fit.Line, my_fit.Squared are not imported'
    assert f'{missing}: pass --exp=my_fit.Fit, or import my_fit in Python' in best
    assert missing in run(fitted, '-m', 'paxtune.studies', 'retry', STUDY, '1').refused()
