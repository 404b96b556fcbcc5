"""Screens of a terminal, with long names, against those in `screens/`.

`PAXTUNE_WRITE_SCREENS=1 python -m pytest tests/paxtune/reports/test_screens.py` writes them anew.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyglove as pg
import pytest

from paxtune.config.budget import Budget
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.factories.studies import ask
from tests.factories.toys import Block, Dense, search, toy

SCREENS = Path(__file__).parent / 'screens'
LONG = 'runs/2026-11-language-models/lm.StdlibArchitectureSearchWithLongNames'


def architecture() -> pg.Object:
    """A study of ten layers, each of a kind, some with heads."""
    kinds = [pg.oneof([Block(pg.oneof([1, 2, 4])), Dense(), Dense(1024)]) for _ in range(10)]
    return toy(layer=kinds, widths=None, search=search(budget=Budget(16)))


def train(study: Study) -> None:
    """Ends five trials of a study, and begins one."""
    for loss in (2.53125, 2.25, 2.4375, 1e-05, None, None):
        trial = ask(study)
        if trial.id == 6:
            return
        if loss is None:
            trial.fail('XlaRuntimeError: RESOURCE_EXHAUSTED: out of memory', is_error=True)
        else:
            metrics = {'loss': loss, 'eval/log_pplx_per_token': 1e5 / 7}
            trial.report(1000, metrics)
            if loss > 1:
                trial.complete()
            else:
                trial.stop('the reward is worse than the median of 3 trials at step 1000')


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('root')
    with open_study(root / LONG, architecture()) as study:
        train(study)
    for name, num_trials in (('lm.StdlibTunable', 2), ('nas.StdlibNas', 1)):
        with open_study(
            root / 'runs' / name, toy(search=search(budget=Budget(num_trials)))
        ) as small:
            trial = ask(small)
            trial.report(10, {'loss': 0.5})
            trial.complete()
    for database in (root / 'runs').rglob('study.db'):
        os.utime(database, (1.8e9, 1.8e9))
    return root


@pytest.fixture(params=['44', '80', '100', '120'])
def width(
    request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    monkeypatch.chdir(root)
    for name in ('FORCE_COLOR', 'NO_COLOR'):
        monkeypatch.setenv(name, '1')
    monkeypatch.setenv('COLUMNS', request.param)
    monkeypatch.setenv('LINES', '24')
    monkeypatch.setenv('TZ', 'UTC')
    time.tzset()
    yield int(request.param)
    monkeypatch.undo()
    time.tzset()


def test_screens_are_those_of_the_files(width: int, shown: Callable[..., str]) -> None:
    screens = {
        'studies list': shown('list'),
        'studies trials': shown('trials', LONG),
        'studies trials --columns': shown(
            'trials', LONG, '--columns=trial,reward,layer.0,metrics,reason', '--sort=reward'
        ),
        'studies trials --state=completed': shown('trials', LONG, '--state=completed'),
    }
    plain = re.compile(r'\x1b\[[0-9;?]*[A-Za-z]')
    lines = [
        line.rstrip()
        for title, screen in screens.items()
        for line in [f'$ {title}', *plain.sub('', screen).splitlines(), '']
    ]
    assert max(map(len, lines)) <= width
    path = SCREENS / f'{width}.txt'
    text = '\n'.join(lines)
    if os.environ.get('PAXTUNE_WRITE_SCREENS'):
        path.write_text(text)
    assert text == path.read_text()


def test_a_pipe_gets_a_line_for_each_trial(root: Path, shown: Callable[..., str]) -> None:
    heading, *lines, note = shown('trials', root / LONG).splitlines()
    assert heading.split() == ['trial', 'state', 'loss', 'decisions', 'reason']
    assert [line.split()[0] for line in lines] == ['1', '2', '3', '4', '5', '6']
    assert note == 'The same in all: seconds=0'
