"""Studies whose algorithm raises, or whose process dies."""

import signal
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from paxtune.algorithms import Algorithm, RandomSearch, Suggestion
from paxtune.storage.open_study import open_study
from paxtune.study.suggester import SuggestionError
from tests.factories.studies import ask, best, decisions, finish, run
from tests.factories.toys import search, toy


class Raising(Algorithm):
    """An algorithm with a bug from the third trial on."""

    def suggest(self, request):
        if request.number > 2:
            raise KeyError('a bug')
        return RandomSearch().suggest(request)


def test_an_algorithm_that_raises_is_an_error_and_no_hang(tmp_path):
    with open_study(tmp_path, toy(search=search(algorithm=Raising()))) as study:
        finish(ask(study))
        finish(ask(study))
        for _ in range(2):
            with pytest.raises(SuggestionError, match="KeyError: 'a bug'"):
                ask(study)
        assert len(study.trials) == 2


class Illegal(Algorithm):
    """Suggests decisions outside the space."""

    def suggest(self, request):
        return Suggestion({'rate': 0.1})


def test_illegal_decisions_of_an_algorithm_are_an_error(tmp_path):
    with open_study(tmp_path, toy(search=search(algorithm=Illegal()))) as study:
        with pytest.raises(SuggestionError):
            ask(study)
        assert study.trials == []


def test_a_keyboard_interrupt_in_an_algorithm_does_not_hang_the_next_suggestion(study, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RandomSearch, 'suggest', _interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask(study)
    assert ask(study).id == 1


def _interrupt(*_):
    raise KeyboardInterrupt


def test_vizier_does_not_turn_on_64_bit_floats(study):
    ask(study)
    assert jnp.asarray(1.0).dtype == jnp.float32


def test_importing_a_study_does_not_import_jax():
    code = 'import sys, paxtune.study.study; sys.exit("jax" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0


_DIE = """
import os, signal, sys
from paxtune.algorithms import RandomSearch
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import open_study
from tests.factories.studies import ask, finish
from tests.factories.toys import toy

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def after(method):
    def killed(*args):
        method(*args)
        die()
    return killed

study = open_study(sys.argv[1], toy())
for _ in range(3):
    finish(ask(study))
{arm}
trial = ask(study)
{then}
"""


def _die(directory: Path, arm: str, then: str = '') -> None:
    code = _DIE.format(arm=arm, then=then)
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, '-c', code, str(directory)], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(
    'arm',
    [
        'RandomSearch.suggest = die',
        'LocalStore.add_protos = die',
        'LocalStore.add_protos = after(LocalStore.add_protos)',
    ],
)
def test_a_kill_inside_a_suggestion_loses_and_repeats_nothing(tmp_path, arm):
    with open_study(tmp_path / 'whole', toy()) as whole:
        run(whole)
        expected = decisions(whole)
    _die(tmp_path / 'killed', arm)
    with open_study(tmp_path / 'killed', toy()) as study:
        trial = ask(study)
        assert trial.id == 4
        finish(trial)
        run(study)
        assert decisions(study) == expected
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 5


@pytest.mark.slow
@pytest.mark.parametrize('when', ['die', 'after(LocalStore.apply)'])
def test_a_kill_inside_a_stop_leaves_no_trial_that_passes_for_a_full_one(tmp_path, when):
    report = "trial.report(10, {'loss': 1e-9})"
    _die(tmp_path, 'pass', f"{report}; LocalStore.apply = {when}; trial.stop('bad')")
    with open_study(tmp_path, toy()) as study:
        trial = study.trials[3]
        if when == 'die':
            assert (trial.state, trial.stop_reason) == ('ACTIVE', None)
            resumed = ask(study)
            assert (resumed.id, resumed.resumed) == (4, True)
        else:
            assert (trial.state, trial.stop_reason, trial.reward) == ('COMPLETED', 'bad', 1e-9)
            assert best(study).id != 4
            assert ask(study).id == 5
