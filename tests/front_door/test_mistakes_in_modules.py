"""Mistakes in the user's code: each gets one message, and nothing is lost."""

from pathlib import Path

import pytest

from tests.front_door.files import content, edit
from tests.front_door.terminal import run

pytestmark = pytest.mark.slow

SEARCH = ('-m', 'paxtune.search', '--exp=my_fit.Fit')
TRAIN = ('-m', 'trainer.main', '--exp=my_fit.Fit', '--job_log_dir=runs/one')
RATE = ('--set', 'task.learner.learning_rate=0.01')
TRIALS = ('-m', 'paxtune.studies', 'trials', 'runs/my_fit.Fit', '--exp=my_fit.Fit')


@pytest.mark.sentinel
@pytest.mark.parametrize(
    ('old', 'new', 'message'),
    [
        (
            'learner = Learner(',
            'learner = Learner(0.1); learner.lerning_rate = 1; learner = Learner(',
            "AttributeError: Learner: there is no 'lerning_rate'. Did you mean learning_rate? "
            '(my_fit.py:26)',
        ),
        (
            'num_train_steps=6',
            'num_train_stepz=6',
            "TypeError: TrainLoop.__init__() got unexpected keyword argument: 'num_train_stepz'. "
            'Did you mean num_train_steps? (my_fit.py:33)',
        ),
        ('Mlp([4], 1)', 'Mlp([4], 1', "SyntaxError: '(' was never closed (my_fit.py:28)"),
        (
            'import Mlp',
            'import Mpl',
            "ImportError: cannot import name 'Mpl' from 'trainer.layers' ",
        ),
    ],
    ids=['attribute', 'keyword', 'syntax', 'import'],
)
def test_a_typo_is_named_with_its_line(home: Path, old: str, new: str, message: str) -> None:
    edit(home / 'my_fit.py', old, new)
    assert run(home, *SEARCH).refused().startswith(f'--exp=my_fit.Fit: {message}')
    assert not (home / 'runs').exists()


def test_a_loss_of_another_shape_is_refused_with_both_shapes(home: Path) -> None:
    edit(home / 'my_fit.py', 'outputs[:, 0] - labels', 'outputs - labels')
    refused = run(home, *TRAIN, *RATE).refused()
    assert refused.startswith('Squared: outputs of shape (8, 1) and labels of shape (8,) give ')
    edit(home / 'my_fit.py', 'outputs - labels', 'outputs[:, 0] - labels')
    assert 'Trained to step 6. In runs/one' in run(home, *TRAIN, *RATE).passed().words


def test_a_bug_in_the_loss_stops_the_search_and_its_trials_run_again(home: Path) -> None:
    edit(home / 'my_fit.py', 'outputs[:, 0] - labels', 'outputs[:, 0] - label')
    stopped = run(home, *SEARCH)
    assert stopped.code == 1
    assert 'trials 1, 2 and 3 all raised the same error' in stopped.words
    assert "NameError: name 'label' is not defined (my_fit.py:22)" in stopped.words
    assert stopped.commands == [[*SEARCH]]
    assert 'The study is saved in runs/my_fit.Fit.' in stopped.words
    assert 'trial 1: infeasible (learning_rate=' in stopped.text
    assert '2 of 3 trials: 2 infeasible (2 failed), 1 active' in stopped.text
    edit(home / 'my_fit.py', 'outputs[:, 0] - label', 'outputs[:, 0] - labels')
    for trial in ('1', '2'):
        run(home, '-m', 'paxtune.studies', 'retry', 'runs/my_fit.Fit', trial, SEARCH[-1]).passed()
    done = run(home, *SEARCH, '--num_trials=5').passed()
    assert 'all of its 5 trials (3 completed, 2 infeasible)' in done.words


@pytest.mark.sentinel
def test_a_wrong_metric_is_refused_and_the_corrected_command_searches(home: Path) -> None:
    edit(home / 'my_fit.py', "'eval/loss'", "'eval/los'")
    refused = run(home, *SEARCH).refused()
    assert refused.startswith(
        "search.objective: 'eval/los' is not measured. Did you mean eval/loss"
    )
    assert not (home / 'runs' / 'my_fit.Fit' / 'study.db').exists()
    edit(home / 'my_fit.py', "'eval/los'", "'eval/loss'")
    assert '(3 completed)' in run(home, *SEARCH).passed().words


@pytest.mark.parametrize('name', ['trainer', 'search_spaces'])
def test_a_file_that_hides_a_package_is_named(fitted: Path, name: str) -> None:
    before = content(fitted / 'runs')
    file = fitted / f'{name}.py'
    file.touch()
    message = f'{file} hides the package `{name}` of paxtune: rename it'
    assert run(fitted, *SEARCH).refused() == run(fitted, *TRIALS).refused() == message
    file.unlink()
    assert content(fitted / 'runs') == before
    assert 'learning_rate=' in run(fitted, *TRIALS).passed().text
