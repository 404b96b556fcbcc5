"""The README's examples, commands, flags and links work."""

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from paxtune import search, train
from paxtune.storage.open_study import load_study
from tests.documents import ROOT, blocks, commands_of, pages_of, parsed
from trainer.experiment import Experiment
from trainer.symbolic import registry

(PATH,) = pages_of(__file__)
README = PATH.read_text()
EXAMPLE, LAYER, FUNCTION = [block.text for block in blocks(README) if block.language == 'python']
COMMANDS = commands_of(README)


@pytest.fixture
def my_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Writes the module of the README's own layer and returns its name."""
    (tmp_path / 'my_layers.py').write_text(LAYER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, 'my_layers', raising=False)
    return 'my_layers'


def test_example_file_ends_with_the_readme_example() -> None:
    source = (ROOT / 'search_spaces' / 'tunable_lm.py').read_text()
    assert source.endswith(EXAMPLE)
    body = EXAMPLE.split('def Tiny')[1]
    assert len(body.strip().splitlines()) <= 20


@pytest.mark.slow
def test_own_layer_is_searched(my_layers: str, tmp_path: Path) -> None:
    exp = f'--exp={my_layers}.Mine'
    assert search.main([exp, f'--job_log_dir={tmp_path}', '--num_trials=1', '--smoke']) == 0
    with load_study(tmp_path) as study:
        assert study.best is not None
        assert study.best.decisions['task.model.stack.layers[0].layer.window'] in (2, 8)


@pytest.mark.slow
@pytest.mark.sentinel
def test_example_runs(tmp_path: Path) -> None:
    exp = '--exp=tunable_lm.Tiny'
    assert search.main([exp, f'--job_log_dir={tmp_path}', '--num_trials=1', '--smoke']) == 0
    with load_study(tmp_path) as study:
        assert study.best is not None
        decisions = study.best.decisions
    assert set(decisions) == {path for path in _decisions_of_the_train_command()}
    made = [f'{path}={value}' for path, value in decisions.items()]
    flags = [exp, f'--job_log_dir={tmp_path / "mine"}', '--smoke', '--decisions', *made]
    assert train.main(flags) == 0


def test_function_is_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {'__name__': 'readme'}
    exec(FUNCTION, names)
    study = names['study']
    assert len(study.trials) == 20
    assert abs(study.best.decisions['x'] - 0.3) < 0.1
    assert capsys.readouterr().out.startswith(str(study.best.reward))


def _decisions_of_the_train_command() -> list[str]:
    (command,) = [c for c in COMMANDS if '--decisions' in c]
    values = command[command.index('--decisions') + 1 :]
    return [value.split('=')[0] for value in values]


def test_make_targets_do_the_set_up() -> None:
    makefile = (ROOT / 'Makefile').read_text()
    targets = re.findall(r'^(\w+):', makefile, re.MULTILINE)
    made = [command for command in COMMANDS if command[0] == 'make']
    assert made == [['make', 'search'], ['make', 'test'], ['make', 'docs']]
    assert set(targets) == {'search', 'test', 'docs'}


@pytest.mark.parametrize('command', [c for c in COMMANDS if c[0] != 'make'], ids=' '.join)
def test_commands_take_their_flags(
    command: list[str], my_layers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = parsed(command, monkeypatch)
    if getattr(flags, 'exp', None) not in (None, '-'):  # The list of a service has none.
        registry.find(flags.exp, Experiment)


def test_flags_in_the_text_exist() -> None:
    named = set(re.findall(r'`(--\w+)', README))
    known = {flag for module in (search, train) for flag in flags_of(module)}
    assert named
    assert named <= known


def flags_of(module: Any) -> set[str]:
    """Collects the flags that the help of a command names."""
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        module.main(['--help'])
    return set(re.findall(r'--\w+', out.getvalue()))
