"""The guides to tuning run, and name everything that a user may write."""

import argparse
import ast
import contextlib
import inspect
import io
import json
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import paxtune
from paxtune import command_line, search, serve
from paxtune.algorithms import Algorithm
from paxtune.config.named_components import classes_of
from paxtune.objectives.rewards import Reward
from paxtune.schedulers import Scheduler
from paxtune.service.monitoring import Metrics
from search_spaces.tunable_lm import Tiny
from tests.documents import ROOT, blocks, commands_of, links, pages_of, parsed
from tests.paxtune.test_serve import ended, served
from trainer import command
from trainer.experiment import Experiment
from trainer.symbolic import registry
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError
from trainer.symbolic.expressions import Expression
from trainer.symbolic.overrides import smoke

GUIDES = pages_of(__file__)
TEXTS = {path: path.read_text() for path in GUIDES}
ALL = '\n'.join(TEXTS.values())
# A cluster has commands of its own, such as `kubectl`. Tests run their own commands.
COMMANDS = [
    words
    for words in commands_of(ALL)
    if words[0] == 'python' and words[:3] != ['python', '-m', 'pytest']
]
MAX_LINES = 600
SLOW = ('plots', 'python-api')

each_guide = pytest.mark.parametrize('guide', GUIDES, ids=lambda path: path.stem)


@pytest.mark.pax(19)
@pytest.mark.parametrize(
    'guide',
    [
        pytest.param(path, marks=pytest.mark.slow if path.stem in SLOW else ())
        for path in GUIDES
        if '```python' in TEXTS[path]
    ],
    ids=lambda path: path.stem,
)
# MLflow's own database warns.
@pytest.mark.filterwarnings('ignore:The ..noload.. loader:sqlalchemy.exc.SADeprecationWarning')
def test_guide_python_prints_the_text_below_it(
    guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = smoke(Tiny())
    monkeypatch.setattr('search_spaces.tunable_lm.Tiny', lambda: small.clone(deep=True))
    monkeypatch.chdir(tmp_path)
    # A component's fields are looked up in its module.
    monkeypatch.setitem(sys.modules, 'guide', types.ModuleType('guide'))
    names: dict[str, Any] = {'__name__': 'guide'}
    printed = None
    for block in blocks(TEXTS[guide]):
        if block.language == 'python':
            assert not printed, f'line {block.line}: the output of the piece before is missing'
            source = '\n' * (block.line - 1) + block.text
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(source, str(guide), 'exec'), names)
            printed = out.getvalue()
        elif block.language == 'text':
            assert printed == block.text, f'line {block.line}'
            printed = None
    assert not printed


@pytest.mark.slow
def test_guide_client_of_vizier_runs(tmp_path: Path) -> None:
    (client,) = [block.text for block in blocks(ALL) if block.language == 'py']
    with served(f'--database={tmp_path}/a.db', '--port=0', '--insecure') as (process, where, _):
        client = client.replace('127.0.0.1:8470', where)
        printed = 'print([trial.materialize().status.name for trial in study.trials()])'
        done = subprocess.run(
            [sys.executable, '-c', f'{client}\n{printed}'],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.stdout == "['COMPLETED', 'COMPLETED']\n", done.stderr
        assert ended(process)[0] == 0


@pytest.mark.parametrize('words', COMMANDS, ids=' '.join)
def test_guide_commands_take_their_flags(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = parsed(words, monkeypatch)
    if getattr(flags, 'exp', None) not in (None, '-'):  # The list of a service has none.
        registry.find(flags.exp, Experiment)
    if words[2] == 'paxtune.search':
        monkeypatch.chdir(tmp_path)
        write_seeds(flags)
        command_line.tunable_for(flags)


def write_seeds(flags: argparse.Namespace) -> None:
    """Writes the file of initial trials that a command names."""
    (text,) = re.findall(r'`(\[\{.*\}\])`', ALL)
    if flags.initial_trials:
        Path(flags.initial_trials).write_text(json.dumps(json.loads(text)))


@each_guide
def test_guide_length(guide: Path) -> None:
    assert len(TEXTS[guide].splitlines()) <= MAX_LINES


def test_guide_index_lists_every_guide() -> None:
    index = ROOT / 'docs' / 'tuning' / 'README.md'
    assert {*GUIDES} <= {index, *((index.parent / link).resolve() for link in links(TEXTS[index]))}


def public(base: type) -> list[str]:
    """Names the subclasses of a class that `paxtune` exports."""
    found = [getattr(paxtune, name) for name in dir(paxtune) if not name.startswith('_')]
    return [each.__name__ for each in found if isinstance(each, type) and issubclass(each, base)]


@pytest.mark.parametrize('base', [Reward, Scheduler, paxtune.LastStep.__base__])
def test_guide_names_every_reward_scheduler_and_aggregator(base: type) -> None:
    names = public(base)
    assert len(names) > 2
    for name in names:
        assert f'`{name}(' in ALL, name


@each_guide
def test_guide_calls_have_existing_fields(guide: Path) -> None:
    prose = re.sub(r'^```.*?^```$', '', TEXTS[guide], flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r'`(\w+\([^`]*\))`', prose):
        call = ast.parse(code.replace('…', '...'), mode='eval').body
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name), code
        component = getattr(paxtune, call.func.id, None)
        if isinstance(component, type) and issubclass(component, Component):
            given = {each.arg for each in call.keywords}
            given |= {each.id for each in call.args if isinstance(each, ast.Name)}
            assert given <= {*component.__schema__.fields}, code


def test_guide_names_every_flag_of_the_service() -> None:
    flags = flags_of(serve.parser()) - flags_of(command.parser(''))
    assert '--database' in flags
    for flag in flags:
        assert flag in ALL, flag


def test_guide_has_the_exit_codes_that_the_commands_name() -> None:
    named = set[str]()
    for package in ('paxtune', 'trainer'):
        for path in (ROOT / package).rglob('*.py'):
            for text in re.findall(r'Exit codes(.*?)"""', path.read_text(), re.DOTALL):
                named |= set(re.findall(r'(?<![\w.])\d{1,3}(?![\w.])', text))
    table = ALL.partition('### Exit codes')[2].partition('\n\n#')[0]
    cells = re.findall(r'^\| ([\d, ]+) \|', table, re.MULTILINE)
    assert named and named <= {code for cell in cells for code in cell.split(', ')}


def test_guide_names_every_prometheus_metric() -> None:
    for metric in Metrics().registry.collect():
        name = f'{metric.name}_total' if metric.type == 'counter' else metric.name
        assert f'`{name}`' in ALL, name


def test_guide_names_every_event_of_a_history() -> None:
    sources = '\n'.join(path.read_text() for path in (ROOT / 'paxtune').rglob('*.py'))
    calls = re.findall(r'\badd_event\((.*)', sources)
    events = {event for call in calls for event in re.findall(r"[ (]'(\w+)'", call)}
    assert {'claimed', 'lost', 'paused', 'ended'} <= events
    monitoring = ALL[ALL.index('## Monitoring') :].partition('\n## ')[0]
    for event in events:
        assert f'`{event}`' in monitoring, event


def test_guide_names_every_algorithm_flag_function_and_field_of_a_search() -> None:
    algorithms, schedulers = classes_of(Algorithm), classes_of(Scheduler)
    assert {cls.__name__ for cls in algorithms.values()} == set(public(Algorithm))
    for name, cls in algorithms.items():
        # A flag that takes another's path stands there with one.
        assert f'| `{name}` |' in ALL or f"| `'{cls.__name__}(" in ALL, name
    assert {cls.__name__ for cls in schedulers.values()} == set(public(Scheduler))
    for flag in flags_of(search.parser()) - flags_of(command.parser('')):
        assert flag in ALL, flag
    with pytest.raises(UserError) as refused:
        Expression('eval(1)')
    functions = str(refused.value).rpartition('the functions ')[2].rstrip('.').split(', ')
    assert 'max' in functions
    for name in functions:
        assert f'`{name}`' in ALL, name
    for name in inspect.signature(paxtune.Search).parameters:
        assert re.search(rf'\b{name}\b', ALL), name


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Collects the flags that a parser takes."""
    return {*re.findall(r'^  (?:-\w, )?(--\w+)', parser.format_help(), re.MULTILINE)}


def test_guide_has_every_command_on_studies(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.module_of('paxtune.studies').main(['--help'])
    listed = capsys.readouterr().out.partition('COMMAND\n')[2].partition('\n\n')[0]
    names = re.findall(r'^    (\w+)', listed, re.MULTILINE)
    assert len(names) == 23
    for name in names:
        assert any(words[2:4] == ['paxtune.studies', name] for words in COMMANDS), name
