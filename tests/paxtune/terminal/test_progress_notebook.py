"""Progress in a notebook, and interrupts of its kernel: a real kernel."""

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from tests.servers.processes import ROOT

pytestmark = pytest.mark.slow(reason='a search with workers is interrupted and goes on')

SECONDS = 240
FUNCTION = """
import time

import pyglove as pg

import paxtune


def curve(x):
    for step in range(5):
        time.sleep(0.1)
        yield {'loss': (x - 3) ** 2 + 1 / (1 + step)}


def search(num_trials, **options):
    loss = paxtune.MetricReward('minimize', 'loss')
    space = None if 'study' in options else {'x': pg.floatv(0.0, 10.0)}
    return paxtune.tune(curve, space=space, num_trials=num_trials, objective=loss, **options)
"""
EXPERIMENT = """
import paxtune
from tests.factories.tunables import Rates


def search(num_trials, **options):
    steps = {'train.num_train_steps': 200, 'train.evaluation.every': 100}
    return paxtune.tune(Rates().rebind(steps), num_trials=num_trials, **options)
"""
STATES = """
with paxtune.load_study({directory!r}) as read:
    print(*(trial.status for trial in read.trials))
"""


@dataclasses.dataclass
class Cell:
    """The messages of a cell: each one's type and content."""

    messages: list[tuple[str, dict[str, Any]]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [content for each, content in self.messages if each == kind]

    @property
    def printed(self) -> str:
        return ''.join(each['text'] for each in self.of('stream') if each['name'] == 'stdout')

    @property
    def screens(self) -> list[str]:
        """The contents of the screen, in order; the profile of the search follows below it."""
        shown, profile = self.of('display_data')
        assert 'Wall clock of this search' in profile['data']['text/plain']
        drawn = [shown, *self.of('update_display_data')]
        assert len({each['transient']['display_id'] for each in drawn}) == 1
        return [each['data']['text/plain'] for each in drawn]

    @property
    def screen(self) -> str:
        """The last of them."""
        return self.screens[-1]


class Kernel:
    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager, self._client = manager, client

    def run(self, code: str, interrupt_at: str = '') -> Cell:
        """Runs a cell; interrupts the kernel once a display has a text."""
        asked = self._client.execute(code)
        messages: list[tuple[str, dict[str, Any]]] = []
        until = time.monotonic() + SECONDS
        while ('status', {'execution_state': 'idle'}) not in messages:
            message = self._client.get_iopub_msg(timeout=until - time.monotonic())
            if message['parent_header'].get('msg_id') != asked:
                continue
            messages.append((message['msg_type'], message['content']))
            if interrupt_at and interrupt_at in str(message['content'].get('data')):
                self._manager.interrupt_kernel()
                interrupt_at = ''
        assert not interrupt_at, messages[-3:]
        return Cell(messages)


@pytest.fixture(scope='module')
def started() -> Iterator[Kernel]:
    env = os.environ | {'PYTHONPATH': str(ROOT)}
    manager, client = start_new_kernel(kernel_name='python3', env=env)
    yield Kernel(manager, client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(started: Kernel, tmp_path: Path) -> Kernel:
    """A kernel in an empty directory."""
    started.run(f'import os; os.chdir({str(tmp_path)!r})')
    return started


@pytest.mark.parametrize('workers', ['', ', workers=2'], ids=['one', 'threads'])
def test_the_screen_of_a_function_changes_in_place(kernel: Kernel, workers: str) -> None:
    cell = kernel.run(f'{FUNCTION}\nstudy = search(3{workers})\nstudy')
    assert 'loss=' in cell.screen and '3 of 3 trials: 3 completed' in cell.screen
    assert any(' of 3 trials ━' in each for each in cell.screens)
    assert not cell.of('error')
    lines = [each['text'] for each in cell.of('stream')]
    assert len(lines) == bool(workers) and all('in threads' in line for line in lines)
    (study,) = cell.of('execute_result')
    assert study['data']['text/html'].startswith('<table>')


def test_an_interrupt_of_a_study_in_memory_returns_its_trials(kernel: Kernel) -> None:
    cell = kernel.run(f'{FUNCTION}\nstudy = search(30)', interrupt_at='trial 1: completed')
    assert not cell.of('error')
    cell = kernel.run('print(study.interrupted, 1 <= len(study.trials) < 30, study.best is None)')
    assert cell.printed == 'True True False\n'
    cell = kernel.run('study = search(3, study=study)\nprint(len(study.trials), study.is_done)')
    assert cell.printed == '3 True\n'


@pytest.mark.parametrize(
    ('code', 'count', 'options', 'moment'),
    [  # Short trials are many: a busy machine shows the moment late.
        (FUNCTION, 12, '', 'trial 1: completed'),
        (FUNCTION, 12, ', workers=2', 'trial 1: completed'),
        (EXPERIMENT, 3, ', workers=2', 'steps/s'),
    ],
    ids=['function', 'threads', 'workers'],
)
def test_an_interrupted_study_is_read_and_continues(
    kernel: Kernel, code: str, count: int, options: str, moment: str
) -> None:
    search = f"{code}\nsearch({count}, job_log_dir='study'{options}).close()"
    cell = kernel.run(search, interrupt_at=moment)
    (error,) = cell.of('error')
    assert error['ename'] == 'KeyboardInterrupt'
    assert f'of {count} trials: ' in cell.screen.splitlines()[-1]
    states = kernel.run(STATES.format(directory='study')).printed.split()
    assert set(states) <= {'completed', 'active'} and states.count('completed') < count
    assert f'{count} of {count} trials: {count} completed' in kernel.run(search).screen
