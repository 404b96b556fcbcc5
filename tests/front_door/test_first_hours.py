"""Own text, own function, and the tables of their studies."""

import re
from pathlib import Path

import pytest

from tests.front_door import files
from tests.front_door.terminal import run

pytestmark = pytest.mark.slow

# Decisions as those of an architecture search: many, with long names.
_ARCHITECTURE = """
import paxtune
import pyglove as pg


def block():
    choice = pg.oneof([2, 4, 'RMSNorm(epsilon=1e-6)'])
    return pg.Dict(
        attention_num_heads=choice,
        feed_forward_hidden_dims=choice.clone(),
        normalization_is_before_residual=choice.clone(),
    )


paxtune.tune(
    lambda values: len(str(values)),
    space={'stack': pg.List([block() for _ in range(4)])},
    num_trials=4,
    objective='minimize',
    algorithm='random_search',
    job_log_dir='runs/architectures',
    callbacks=[],
).close()
"""


def test_an_own_text_is_searched_and_the_best_trial_is_trained(home: Path) -> None:
    assert len(files.WIKI.strip().splitlines()) <= 30
    searched = run(home, '-m', 'paxtune.search', '--exp=my_exp.Wiki').passed()
    assert 'it has all of its 2 trials (2 completed): runs/my_exp.Wiki' in searched.words
    assert '0 of 2 trials' in searched.raw
    assert 'trial 2: completed, eval/' in searched.text
    assert '2 of 2 trials: 2 completed; best: trial ' in searched.text
    assert '0 of 0' not in searched.raw
    (train,) = searched.commands
    trained = run(home, *train).passed()
    assert 'Trained to step 6. In runs/my_exp.Wiki/best-' in trained.words
    assert 'step 6: eval/' in trained.words


def test_an_own_function_shows_its_progress(home: Path) -> None:
    shown = run(home, 'my_function.py').passed()
    assert '8 of 8 trials: 8 completed; best: trial ' in shown.text
    assert 'all 8 trials, best ' in shown.text
    ended = re.findall(r'^trial \d: completed, objective=\S+ \(x=', shown.text, re.MULTILINE)
    assert len(ended) == 8


def test_tables_of_an_architecture_study_fit_the_terminal(home: Path) -> None:
    (home / 'search.py').write_text(_ARCHITECTURE)
    run(home, 'search.py').passed()
    study = 'runs/architectures'
    trials = run(home, '-m', 'paxtune.studies', 'trials', study).passed().text
    rows = [line for line in trials.splitlines() if line[:1].isdigit()]
    assert [row.split()[0] for row in rows] == ['1', '2', '3', '4']
    assert all(float(row.split()[1]) > 0 for row in rows), trials  # Never cut, never folded.
    assert 'attention_num_heads' in trials
    listed = run(home, '-m', 'paxtune.studies', 'list').passed().text
    (row,) = [line for line in listed.splitlines() if study in line]
    assert '4/4' in row and '4 completed' in row
    for command in (['show', study, '--trial=2'], ['diff', study, '1', '2']):
        run(home, '-m', 'paxtune.studies', *command).passed()
