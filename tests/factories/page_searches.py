"""Searches with three workers that a browser looks at. They train nothing."""

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyglove as pg

from paxtune import Asha, MetricReward, SkipTrial, intv, tune
from paxtune.algorithms import RegularizedEvolution
from paxtune.running.tuner import Paused
from paxtune.study.running_trial import RunningTrial
from tests.servers.processes import ROOT, environment

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
    with contextlib.suppress(Paused):
        tune(
            hold,
            space={'rate': pg.floatv(1e-4, 1e-1, 'log')},
            objective=LOSS,
            algorithm='random_search',
            num_trials=30,
            workers=WORKERS,
            job_log_dir=directory,
            seed=1,
            exp='held.Example',
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
        learn,
        space=learning_space(),
        objective=LOSS,
        algorithm=RegularizedEvolution(population_size=24, tournament_size=4),
        scheduler=Asha(min_resource=3, max_resource=_MAX_STEPS, reduction_factor=2),
        num_trials=200,
        workers=WORKERS,
        job_log_dir=directory,
        seed=3,
        exp='charts.Example',
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
