"""Names of functions for workers: of modules, and of the script that runs."""

import math
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from paxtune.api import tune
from paxtune.running.import_names import NotImportableError, import_name, imported
from tests.factories.function_studies import PARALLEL, process_of
from tests.servers.processes import environment
from trainer.symbolic.errors import UserError

SCRIPT = """
import functools, sys
from paxtune.running.import_names import NotImportableError, import_name

try:
    import a_module_that_is_missing as optional
except ImportError as error:
    optional = None
SCALE, ARGUMENTS = 2, sys.argv[1:]

def plain(x):
    return x * SCALE

def calls(x):
    return [plain(each) for each in (x, len(__name__)) if not optional]

def reads_late(x):
    return lambda: LATE + x

def calls_below(x):
    return below(x)

class Net:
    @staticmethod
    def fit(x):
        return plain(x)

    def train(self, x):
        return below(x)

tripled = functools.partial(plain, 3)
doubled = lambda x: 2 * x

def main():
    global LATE
    LATE = 1
    def inner(x):
        return x
    return inner

if __name__ == '__main__':
    DATA = 3
    def below(x):
        return DATA * x
    halved = functools.partial(plain, 0.5)
    found = {}
    given = [plain, calls, Net.fit, tripled, doubled, main(), reads_late, calls_below, below, Net]
    for each in [*given, halved, Net().train, lambda x: x]:
        try:
            name = import_name(each).rpartition(':')[2]
        except NotImportableError as error:
            name = str(error)
        found[getattr(each, '__qualname__', str(len(found)))] = name
"""


def executed(text: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Executes a text as the script that runs; returns its names."""
    path.write_text(text)
    main = types.ModuleType('__main__')
    main.__file__ = str(path)
    monkeypatch.setitem(sys.modules, '__main__', main)
    exec(compile(text, path, 'exec'), vars(main))
    return vars(main)


def test_a_function_of_a_script_has_a_name_if_an_import_has_all_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = executed(SCRIPT, tmp_path / 'my-script.py', monkeypatch)['found']
    guard = "my-script.py sets {} only below `if __name__ == '__main__':`, or in a function"
    top = '{} is not at the top level of my-script.py'
    assert found.pop('10').startswith('functools.partial(<function plain at ')
    assert found == {
        'plain': 'plain',
        'calls': 'calls',
        'Net.fit': 'Net.fit',
        '3': 'tripled',
        '<lambda>': top.format('<lambda>'),
        'main.<locals>.inner': top.format('main.<locals>.inner'),
        'reads_late': guard.format('LATE'),
        'calls_below': guard.format('below'),
        'below': guard.format('below'),
        'Net': guard.format('below'),
        'Net.train': top.format('Net.train'),
    }


def test_a_script_is_imported_with_its_arguments_and_not_as_main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, 'argv', ['worker'])
    for name in ('__main__', '__mp_main__'):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    path = tmp_path / 'random.py'
    path.write_text(SCRIPT)
    assert imported(f'{path}:plain', ['random.py', '--fast'])(3) == 6
    assert imported(f'{path}:calls')(3) == [6, 22]
    assert vars(sys.modules['__mp_main__'])['ARGUMENTS'] == ['--fast']
    assert imported('math:sqrt') is math.sqrt
    with pytest.raises(UserError, match=r'random\.py has no below when a worker imports it'):
        imported(f'{path}:below')
    path = tmp_path / 'unguarded.py'
    path.write_text('import paxtune\npaxtune.tune(lambda x: x)')
    with pytest.raises(UserError, match=r'calls paxtune\.tune as a worker imports it: put .*__ma'):
        imported(f'{path}:plain')
    tune(lambda x: x, **PARALLEL)


def test_other_functions_say_why_they_have_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert import_name(process_of) == 'tests.factories.function_studies:process_of'
    for bad in (lambda x: x, types.MethodType(process_of, 1)):
        with pytest.raises(NotImportableError, match='is not at the top level of a module'):
            import_name(bad)
    text = SCRIPT.replace("if __name__ == '__main__':", 'if True:')
    found = executed(text, tmp_path / 'open.py', monkeypatch)['found']
    assert found['plain'] == (
        "open.py calls tune outside of `if __name__ == '__main__':`, and a process that imports it "
        'would search again'
    )
    main = types.ModuleType('__main__')
    monkeypatch.setitem(sys.modules, '__main__', main)
    exec('def train(x): return x', vars(main))
    with pytest.raises(NotImportableError, match='of a notebook or a session'):
        import_name(vars(main)['train'])


def test_a_function_that_no_worker_has_runs_in_threads(capsys: pytest.CaptureFixture[str]) -> None:
    own = PARALLEL['space']
    for space, why in (({**own, 'kind': object()}, 'kind is'), (own, 'not at the top level')):
        study = tune(lambda x, **rest: x, workers=2, **(PARALLEL | {'space': space}))
        assert {each.state for each in study.trials} == {'COMPLETED'}
        first = capsys.readouterr().err.splitlines()[0]
        assert first.startswith('2 trials at a time in threads, where Python takes turns: ')
        assert why in first
    with tune(process_of, workers=2, study=study, num_trials=5) as study:
        assert study.trials[-1].metrics['process'] == os.getpid()


WORKING = """
import argparse, os, signal, sys
import paxtune, pyglove as pg

parser = argparse.ArgumentParser()
parser.add_argument('--scale', type=float)
parser.add_argument('--workers', type=int)
args = parser.parse_args()

def train(x, trial):
    if trial.id == 2:
        raise ValueError('a bug')
    if trial.id == 3:
        sys.exit(2)
    if trial.id == 4 and trial.view.attempt == 1 and __name__ != '__main__':
        os.kill(os.getpid(), signal.SIGKILL)
    return {'objective': x * args.scale, 'is_main': float(__name__ == '__main__')}

def search():
    study = paxtune.tune(train, space={'x': pg.floatv(0.0, 1.0)}, num_trials=5, quiet=True,
                         objective='minimize', algorithm='random_search', workers=args.workers)
    for trial in study.trials:
        print(trial.id, trial.state, trial.decisions['x'], trial.rewards, trial.reason)
        print('where', trial.metrics.get('is_main'))

if __name__ == '__main__':
    search()
"""


CLASSES = """
import paxtune, pyglove as pg
from trainer import Component

class Net(Component):
    width: int

    def size(self) -> int:
        return 2 * self.width

def train(net, trial):
    return {'objective': net.size(), 'is_main': float(__name__ == '__main__')}

if __name__ == '__main__':
    study = paxtune.tune(train, space={'net': Net(pg.oneof([1, 2]))}, quiet=True, workers=2,
                         objective='minimize', algorithm='grid')
    print([(trial.state, trial.rewards, trial.metrics.get('is_main')) for trial in study.trials])
"""


@pytest.mark.slow(reason='workers of three scripts start')
@pytest.mark.parametrize('words', [['train.py'], ['-m', 'train'], ['-m', 'package']])
def test_workers_have_the_classes_of_a_script(words: list[str], tmp_path: Path) -> None:
    (tmp_path / 'package').mkdir()
    for path in ('train.py', 'package/__init__.py', 'package/__main__.py'):
        (tmp_path / path).write_text(CLASSES)
    done = run(tmp_path / words[0], *words[1:])
    expected = [('COMPLETED', (float(size),), 0.0) for size in (2, 4)]
    assert done.stdout == f'{expected}\n', done.stderr


def run(path: Path, *flags: str) -> 'subprocess.CompletedProcess[str]':
    return subprocess.run(
        [sys.executable, path.name, *flags],
        cwd=path.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.slow(reason='workers of a script start, and one is killed')
def test_workers_run_a_function_of_a_script(tmp_path: Path) -> None:
    path = tmp_path / 'train.py'
    path.write_text(WORKING)
    alone, both = (run(path, '--scale=3', f'--workers={count}') for count in (1, 2))
    assert 'where 1.0' in alone.stdout and 'where 1.0' not in both.stdout
    lines = [
        [each for each in done.stdout.splitlines() if not each.startswith('where')]
        for done in (alone, both)
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 5, both.stderr
    assert 'INFEASIBLE' in lines[0][1] and 'ValueError: a bug' in lines[0][1]
    assert 'SystemExit: 2' in lines[0][2]
    assert 'COMPLETED' in lines[0][3]


@pytest.mark.slow(reason='workers of a script start')
def test_a_script_without_a_guard_starts_no_more_processes(tmp_path: Path) -> None:
    path = tmp_path / 'train.py'
    path.write_text(WORKING.replace("if __name__ == '__main__':", 'if True:'))
    done = run(path, '--scale=3', '--workers=2')
    assert done.stdout.count('where 1.0') == 3
    assert done.stderr.splitlines() == [
        '2 trials at a time in threads, where Python takes turns: train.py calls tune outside of '
        "`if __name__ == '__main__':`, and a process that imports it would search again."
    ]
    # This looks like a guard, and holds in a worker as well.
    path.write_text(WORKING.replace("if __name__ == '__main__':", "if __name__ != '':"))
    done = run(path, '--scale=3', '--workers=2')
    assert 'where' not in done.stdout
    assert done.stderr.count('calls paxtune.tune as a worker imports it: put the call below') == 1
