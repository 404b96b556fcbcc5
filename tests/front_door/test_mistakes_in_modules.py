"""Mistakes in the user's code: each gets one message, and nothing is lost."""

from pathlib import Path
from types import ModuleType

import pytest

from paxtune import search
from tests.front_door.files import edit
from tests.front_door.terminal import run
from trainer import main as train
from trainer.symbolic.errors import UserError

SEARCH = ('-m', 'paxtune.search', '--exp=my_fit.Fit')


def refused(command: ModuleType, *flags: str) -> str:
    """The message of a command on the user's experiment, which it must refuse."""
    with pytest.raises(UserError) as raised:
        command.main(['--exp=my_fit.Fit', *flags])
    return str(raised.value)


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
def test_a_typo_is_named_with_its_line(entered: Path, old: str, new: str, message: str) -> None:
    edit(entered / 'my_fit.py', old, new)
    assert refused(search).startswith(f'--exp=my_fit.Fit: {message}')
    assert not (entered / 'runs').exists()


def test_a_loss_of_another_shape_is_refused_with_both_shapes(entered: Path) -> None:
    edit(entered / 'my_fit.py', 'outputs[:, 0] - labels', 'outputs - labels')
    message = refused(train, '--job_log_dir=runs/one', '--set', 'task.learner.learning_rate=0.01')
    assert message.startswith('Squared: outputs of shape (8, 1) and labels of shape (8,) give ')


@pytest.mark.slow
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
    run(home, '-m', 'paxtune.studies', 'retry', 'runs/my_fit.Fit', '1', SEARCH[-1]).passed()
    done = run(home, *SEARCH, '--num_trials=4').passed()
    assert 'all of its 4 trials (2 completed, 2 infeasible)' in done.words


def test_a_wrong_metric_is_refused_before_there_is_a_study(entered: Path) -> None:
    edit(entered / 'my_fit.py', "'eval/loss'", "'eval/los'")
    message = "search.objective: 'eval/los' is not measured. Did you mean eval/loss"
    assert refused(search).startswith(message)
    assert not (entered / 'runs' / 'my_fit.Fit' / 'study.db').exists()
