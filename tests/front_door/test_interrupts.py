"""Ctrl-C: a message says what happens, and the printed command continues."""

from pathlib import Path

import pytest

from tests.front_door.terminal import run
from trainer.runtime.interrupt import Interrupt

pytestmark = pytest.mark.slow

STEPS = ('train.num_train_steps=2000', 'train.evaluation.every=1000')


def test_an_interrupted_search_continues_with_the_printed_command(home: Path) -> None:
    words = ('-m', 'paxtune.search', '--exp=my_fit.Fit', '--num_trials=2', '--set', *STEPS)
    stopped = run(home, *words, interrupt_at=r' running ')
    assert stopped.code == 130
    assert Interrupt.MESSAGE in stopped.raw
    assert 'Paused: interrupted. The study is saved in runs/my_fit.Fit.' in stopped.words
    assert stopped.commands == [[*words]]
    done = run(home, *stopped.commands[0]).passed()
    assert 'trial 1: resumed from step ' in done.text
    assert '(2 completed)' in done.words


def test_an_interrupted_function_keeps_its_trials_and_continues(home: Path) -> None:
    shown = run(home, 'my_function.py', interrupt_at='trial 2: completed').passed()
    assert 'and tune(…, study=study) continues the study.' in shown.words
    assert ' trials so far' in shown.text
    assert 'all 8 trials, best ' in shown.text
