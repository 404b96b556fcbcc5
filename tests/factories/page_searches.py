"""A study with hostile text, and its page without a browser."""

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyglove as pg
from dash import Dash
from flask.testing import FlaskClient
from werkzeug.test import Client

from paxtune import Asha, Budget, MetricReward, Search, SkipTrial, intv, tune
from paxtune.algorithms import RegularizedEvolution
from paxtune.page.access import Access, access_rule
from paxtune.page.front import protected
from paxtune.page.live import LiveStudy
from paxtune.page.server import study_app
from paxtune.running.tuner import Paused
from paxtune.running.workloads import workload_of
from paxtune.service.study_location import DirectoryLocation
from paxtune.storage.open_study import open_study
from paxtune.study.running_trial import RunningTrial
from tests.servers.processes import ROOT, environment

SCRIPT = '<script>alert(1)</script>'
HOST = 'http://127.0.0.1:8471'
TOKEN = '0123456789abcdef'
SPACE = pg.Dict(rate=pg.floatv(1e-4, 1e-1, 'log'), kind=pg.oneof(['plain', SCRIPT]))
SEARCH = Search(MetricReward('minimize', 'loss'), Budget(100))


def make_study(directory: Path, count: int = 4) -> None:
    """Makes a study: the last trial is infeasible, and one more runs."""
    with open_study(directory, SPACE, search=SEARCH) as study:
        for number in range(1, count + 1):
            trial = study.ask()
            assert trial is not None
            if number == count:
                study.tell(trial, infeasible=f'{SCRIPT} failed')
            else:
                trial.report(1, {'loss': 1.0 / number, 'size': number})
                study.tell(trial)
        trial = study.ask()
        assert trial is not None
        trial.report(1, {'loss': 0.5, 'size': 0})


def opened(directory: Path, clock: Callable[[], float] = time.monotonic) -> LiveStudy:
    """Opens the study of a directory for a page."""
    return LiveStudy(DirectoryLocation(str(directory)), [str(directory)], clock)


def page_app(live: LiveStudy, access: Access) -> Dash:
    """Makes the page of a study, which checks each request."""
    app = study_app(live, access.base_path)
    app.server.wsgi_app = protected(app.server.wsgi_app, access)
    return app


def client(live: LiveStudy, access: Access | None = None) -> FlaskClient:
    """Makes a client of the page of a study.

    Args:
        live: the study.
        access: the client has no token yet. By default it has one, on loopback.
    """
    rule = access or access_rule('127.0.0.1', TOKEN, False)
    made = page_app(live, rule).server.test_client()
    if access is None:
        made.get(f'/?token={TOKEN}', base_url=HOST)
    return made


def call(
    client: Client,
    output: str | tuple[str, ...],
    inputs: Mapping[str, Any],
    states: Mapping[str, Any] = {},
    base_path: str = '/',
) -> Any:
    """Calls a callback as the page does, and returns the reply.

    Args:
        client: of the page.
        output: `id.property`, or several of a callback that has several.
        inputs: by `id.property`.
        states: likewise.
        base_path: of the page in a browser.
    """

    def entries(values: Mapping[str, Any]) -> list[dict[str, Any]]:
        parts = [(*key.rsplit('.', 1), value) for key, value in values.items()]
        return [{'id': id_, 'property': name, 'value': value} for id_, name, value in parts]

    def named(each: str) -> dict[str, str]:
        id_, _, name = each.rpartition('.')
        return {'id': id_, 'property': name.partition('@')[0]}

    body = {
        'output': output if isinstance(output, str) else f'..{"...".join(output)}..',
        'outputs': named(output) if isinstance(output, str) else [*map(named, output)],
        'inputs': entries(inputs),
        'state': entries(states),
        'changedPropIds': list(inputs),
    }
    reply = client.post(
        f'{base_path}_dash-update-component',
        base_url=HOST,
        data=json.dumps(body),
        content_type='application/json',
        headers={'Origin': HOST, 'Sec-Fetch-Site': 'same-origin'},
    )
    assert reply.status_code == 200, reply.text
    return reply


GATES = 'PAXTUNE_TEST_GATES'
"""Variable with a directory. A trial of `held_search` ends when this has a file of its number."""

WORKERS = 3
LEARNED = 54
"""Trials of `learning_search` that end. Each worker then has one more, which waits."""

LOSS = MetricReward('minimize', 'loss')

_MAX_STEPS = 27
_PATIENCE = 1800.0


def hold(rate: float, trial: RunningTrial) -> Iterator[dict[str, float]]:
    """Measures again and again until the test lets the trial end."""
    gate = Path(os.environ[GATES]) / str(trial.id)
    began = time.monotonic()
    while time.monotonic() - began < _PATIENCE:
        is_last = gate.exists()
        yield {'loss': rate, 'seconds_so_far': time.monotonic() - began}
        if is_last:
            return
        time.sleep(0.2)


def held_search(directory: str) -> None:
    """Searches with trials that the test ends."""
    space = {'rate': pg.floatv(1e-4, 1e-1, 'log')}
    with contextlib.suppress(Paused):
        tune(
            workload_of(hold, space, exp='held.Example'),
            objective=LOSS,
            algorithm='random_search',
            num_trials=30,
            workers=WORKERS,
            job_log_dir=directory,
            seed=1,
        ).close()


def learning_space() -> dict[str, Any]:
    """A conditional space: each optimizer has decisions of its own."""
    return {
        'model': pg.Dict(width=intv(16, 512, 'log'), depth=pg.oneof([2, 4, 6])),
        'optimizer': pg.oneof(
            [
                pg.Dict(kind='adam', beta=pg.floatv(0.8, 0.99)),
                pg.Dict(kind='sgd', momentum=pg.floatv(0.0, 0.95)),
            ]
        ),
        'learning_rate': pg.floatv(1e-4, 0.3, 'log'),
        'weight_decay': pg.floatv(1e-6, 1e-2, 'log'),
    }


def learn(values: pg.Dict, trial: RunningTrial) -> Iterator[dict[str, float]]:
    """Yields the learning curve of a made-up model, with noise."""
    random_ = random.Random(trial.id)
    best_rate = 3e-3 if values.optimizer.kind == 'adam' else 5e-2
    distance = math.log10(values.learning_rate / best_rate)
    size = math.log2(values.model.width) + values.model.depth / 2
    floor = 0.4 + 0.25 * distance**2 + 0.02 * (size - 9) ** 2
    floor += 0.05 * abs(math.log10(values.weight_decay) + 4)
    for step in range(1, _MAX_STEPS + 1):
        if distance > 1.5 and step == 2:
            raise SkipTrial('the loss diverged')
        loss = floor + 2.0 * math.exp(-step / (4 + 2 * distance**2)) + random_.gauss(0, 0.01)
        yield {'loss': loss, 'parameters': 2.0**size}
        if step == 2 and trial.id > LEARNED:
            time.sleep(_PATIENCE)  # The test ends the search.
        time.sleep(0.03)


def learning_search(directory: str) -> None:
    """Searches with learning curves, early stopping and infeasible trials."""
    tune(
        workload_of(learn, learning_space(), exp='charts.Example'),
        objective=LOSS,
        algorithm=RegularizedEvolution(population_size=24, tournament_size=4),
        scheduler=Asha(min_resource=3, max_resource=_MAX_STEPS, reduction_factor=2),
        num_trials=200,
        workers=WORKERS,
        job_log_dir=directory,
        seed=3,
    ).close()


@contextlib.contextmanager
def searching(name: str, directory: Path, gates: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs a search of this module, by name, in processes of its own while entered."""
    gates.mkdir(exist_ok=True)
    code = f'from tests.factories import page_searches; page_searches.{name}({str(directory)!r})'
    with open(directory.with_suffix('.out'), 'w') as out:
        process = subprocess.Popen(
            [sys.executable, '-c', code], cwd=ROOT, env=environment() | {GATES: str(gates)},
            stdout=out, stderr=out, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        # Its workers are in its group, or end with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
