"""Studies whose algorithm raises or suggests illegal decisions."""

import subprocess
import sys

import jax.numpy as jnp
import pytest

from paxtune.algorithms import Algorithm, RandomSearch, Suggestion
from paxtune.storage.open_study import open_study
from paxtune.study.suggester import SuggestionError
from tests.factories.studies import ask, finish
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

    rate: float
    has_others: bool

    def suggest(self, request):
        others = RandomSearch().suggest(request).decisions if self.has_others else {}
        return Suggestion({**others, 'rate': self.rate})


@pytest.mark.parametrize(('rate', 'has_others'), [(0.1, False), (5.0, True), (float('nan'), True)])
def test_illegal_decisions_of_an_algorithm_are_an_error(tmp_path, rate, has_others):
    with open_study(tmp_path, toy(search=search(algorithm=Illegal(rate, has_others)))) as study:
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
