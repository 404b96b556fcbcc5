"""What the README says is so."""

import re
import shlex
from pathlib import Path

import pytest

from examples.tunable_lm import Tiny
from paxtune import search, train
from paxtune.study import Study
from trainer import registry
from trainer.experiment import Experiment

ROOT = Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text()
BLOCKS = re.findall(r'```(\w+)\n(.*?)```', README, re.DOTALL)


def test_the_example_is_the_one_in_the_readme() -> None:
    (code,) = [text for language, text in BLOCKS if language == 'python']
    source = (ROOT / 'examples' / 'tunable_lm.py').read_text()
    assert source.endswith(code)
    body = code.split('def Tiny')[1]
    assert len(body.strip().splitlines()) <= 20


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('trainer.command.enable_compilation_cache', lambda: None)
    exp = '--exp=examples.tunable_lm.Tiny'
    small = ['--set', 'train.num_train_steps=2', 'eval_inputs.eval.max_bytes=4096']
    assert search.main([exp, f'--job_log_dir={tmp_path}', '--num_trials=1', *small]) == 0
    with Study.load(tmp_path) as study:
        assert study.best is not None
        decisions = study.best.decisions
    assert set(decisions) == {path for path in _decisions_of_the_train_command()}
    made = [f'{path}={value}' for path, value in decisions.items()]
    flags = [exp, f'--job_log_dir={tmp_path / "mine"}', *small, '--decisions', *made]
    assert train.main(flags) == 0


def _commands() -> list[list[str]]:
    lines = [text for language, text in BLOCKS if language == 'sh']
    joined = '\n'.join(lines).replace('\\\n', ' ')
    return [shlex.split(line) for line in joined.splitlines() if line]


def _decisions_of_the_train_command() -> list[str]:
    (command,) = [c for c in _commands() if '--decisions' in c]
    values = command[command.index('--decisions') + 1 :]
    return [value.split('=')[0] for value in values]


def test_exactly_two_commands_do_all_the_set_up() -> None:
    makefile = (ROOT / 'Makefile').read_text()
    targets = re.findall(r'^(\w+):', makefile, re.MULTILINE)
    made = [command for command in _commands() if command[0] == 'make']
    assert made == [['make', 'search'], ['make', 'test']]
    assert set(targets) == {'search', 'test'}


@pytest.mark.parametrize('command', _commands(), ids=' '.join)
def test_every_command_is_one_that_we_have(command: list[str]) -> None:
    if command[0] == 'make':
        return
    assert command[:2] == ['python', '-m']
    assert command[2] in ('paxtune.search', 'paxtune.train', 'trainer.main')
    for flag in command[3:]:
        if flag.startswith('--exp='):
            name = flag.removeprefix('--exp=')
            registry.find(name, Experiment)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r'\]\(([^)]+)\)', README):
        assert (ROOT / target).exists(), target


def test_the_example_is_tunable() -> None:
    assert Tiny().search.num_trials == 8
