"""What docs/tuning.md says is so."""

import argparse
import contextlib
import inspect
import io
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import paxtune
from examples.tunable_lm import Tiny
from paxtune import search, serve, studies
from paxtune.algorithms import Algorithm
from paxtune.objectives.rewards import Reward
from paxtune.schedulers import Policy
from paxtune.service.monitoring import Metrics
from tests.documents import ROOT, blocks, commands_of, dead_links, parsed
from trainer import command
from trainer.experiment import Experiment
from trainer.symbolic import registry
from trainer.symbolic.expressions import _FUNCTIONS
from trainer.symbolic.overrides import smoke

GUIDE = (ROOT / 'docs' / 'tuning.md').read_text()
COMMANDS = commands_of(GUIDE)


@pytest.mark.slow
def test_every_piece_of_python_runs_and_prints_what_stands_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = smoke(Tiny())
    monkeypatch.setattr('examples.tunable_lm.Tiny', lambda: small.clone(deep=True))
    monkeypatch.chdir(tmp_path)
    # A component's fields are looked up in its module.
    monkeypatch.setitem(sys.modules, 'guide', types.ModuleType('guide'))
    names: dict[str, Any] = {'__name__': 'guide'}
    printed = None
    for block in blocks(GUIDE):
        if block.language == 'python':
            assert not printed, f'line {block.line}: what the piece before prints is not there'
            source = '\n' * (block.line - 1) + block.text
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(source, 'docs/tuning.md', 'exec'), names)
            printed = out.getvalue()
        elif block.language == 'text':
            assert printed == block.text, f'line {block.line}'
            printed = None
    assert not printed


@pytest.mark.parametrize('words', COMMANDS, ids=' '.join)
def test_every_command_takes_its_flags(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = parsed(words, monkeypatch)
    if getattr(flags, 'exp', None):
        registry.find(flags.exp, Experiment)
    if words[2] == 'paxtune.search':
        monkeypatch.chdir(tmp_path)
        write_seeds(flags)
        search.tunable_for(flags)


def write_seeds(flags: argparse.Namespace) -> None:
    """Writes the file of seeds that a command names."""
    (text,) = re.findall(r'`(\[\{.*\}\])`', GUIDE)
    if flags.seed_trials:
        Path(flags.seed_trials).write_text(json.dumps(json.loads(text)))


def test_links_lead_somewhere() -> None:
    assert not dead_links(ROOT / 'docs' / 'tuning.md')


def public(base: type) -> list[str]:
    """The names in `paxtune` of what is derived from a class."""
    found = [getattr(paxtune, name) for name in dir(paxtune) if not name.startswith('_')]
    return [each.__name__ for each in found if isinstance(each, type) and issubclass(each, base)]


@pytest.mark.parametrize('base', [Reward, Policy, paxtune.LastStep.__base__])
def test_every_reward_policy_and_aggregator_is_in_the_guide(base: type) -> None:
    names = public(base)
    assert len(names) > 2
    for name in names:
        assert f'`{name}(' in GUIDE, name


def test_every_flag_of_the_service_is_there() -> None:
    flags = flags_of(serve._flags()) - flags_of(command.parser(''))
    assert '--database' in flags
    for flag in flags:
        assert flag in GUIDE, flag


def test_what_prometheus_reads_is_there() -> None:
    for metric in Metrics().registry.collect():
        name = f'{metric.name}_total' if metric.type == 'counter' else metric.name
        assert f'`{name}`' in GUIDE, name


def test_every_event_of_a_history_is_there() -> None:
    sources = '\n'.join(path.read_text() for path in (ROOT / 'paxtune').rglob('*.py'))
    events = set(re.findall(r"\brecord\(\s*(?:\w+,\s*)?'(\w+)'", sources))
    assert {'claimed', 'lost', 'paused', 'ended'} <= events
    history = GUIDE[GUIDE.index('its history: ') :].partition('.')[0]
    for event in events:
        assert event in history, event


def test_every_algorithm_flag_function_and_field_of_a_search_is_there() -> None:
    names = search.algorithm_names()
    assert set(names.values()) == set(public(Algorithm))
    for name, cls in names.items():
        # Those that take another's path stand there with one.
        assert f'| `{name}` |' in GUIDE or f"| `'{cls}(" in GUIDE, name
    assert set(search.policy_names().values()) == set(public(Policy))
    for flag in flags_of(search._flags()) - flags_of(command.parser('')):
        assert flag in GUIDE, flag
    for name in _FUNCTIONS:
        assert f'`{name}`' in GUIDE, name
    for name in inspect.signature(paxtune.Search).parameters:
        assert re.search(rf'\b{name}\b', GUIDE), name


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """All flags that a parser takes."""
    return {flag for action in parser._actions for flag in action.option_strings}


def test_every_command_on_studies_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        studies.main(['--help'])
    listed = capsys.readouterr().out.partition('COMMAND\n')[2].partition('\n\n')[0]
    names = re.findall(r'^    (\w+)', listed, re.MULTILINE)
    assert len(names) == 15
    for name in names:
        assert any(words[2:4] == ['paxtune.studies', name] for words in COMMANDS), name
