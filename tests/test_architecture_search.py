"""The guide to architecture search: its layer is searched, its commands and links work."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from paxtune import tune
from tests.documents import blocks, commands_of, pages_of, parsed
from trainer.experiment import Experiment
from trainer.layers import Residual
from trainer.symbolic import registry
from trainer.symbolic.overrides import replaced, smoke

(PATH,) = pages_of(__file__)
DOCUMENT = PATH.read_text()
COMMANDS = commands_of(DOCUMENT)
PYTHON = [block.text for block in blocks(DOCUMENT) if block.language == 'python']


@pytest.fixture
def my_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Writes the module of the document and returns its text."""
    text, _ = PYTHON
    (tmp_path / 'my_space.py').write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, 'my_space', raising=False)
    return text


@pytest.mark.parametrize('words', COMMANDS, ids=' '.join)
def test_commands_take_their_flags(
    words: list[str], my_space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = parsed(words, monkeypatch)
    if getattr(flags, 'exp', None):
        assert registry.find(flags.exp, Experiment)


def test_new_layer_has_at_most_thirty_lines(my_space: str) -> None:
    assert len(my_space.splitlines()) <= 30


@pytest.mark.slow
@pytest.mark.sentinel
def test_new_layer_is_searched(my_space: str, tmp_path: Path) -> None:
    module = importlib.import_module('my_space')
    experiment = smoke(module.LeakyNas())
    leaky = Residual(module.LeakyMean(half_life=8))
    experiment.rebind({'task.model.stack.layers[1]': leaky, 'search.limits': []})
    with tune(experiment, num_trials=2, job_log_dir=tmp_path / 'study') as study:
        assert [trial.status for trial in study.trials] == ['completed'] * 2
        for trial in study.trials:
            assert trial.materialize().task.model.stack.layers[1] == leaky


def test_children_of_the_document_inherit() -> None:
    made: dict[str, Any] = {}
    exec(PYTHON[1], made)
    search = made['search'].search
    assert search.warm_start == 'parent'
    assert search.child_overrides['train.num_train_steps'] == 40
    overridden = replaced(made['search'], dict(search.child_overrides), 'a child')
    assert overridden.task.learner.schedule.decay_steps == 40
