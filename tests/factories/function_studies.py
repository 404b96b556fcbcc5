"""Studies of functions, for tests. They train nothing."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyglove as pg

from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.tuner import Tuner
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.factories.toys import LOSS

SPACE = pg.Dict(x=pg.oneof([0, 1, 2, 3, 4, 5]))
OBJECTIVE = MetricReward('minimize', 'objective')
PARALLEL: dict[str, Any] = {
    'space': {'x': pg.floatv(0.0, 1.0)},
    'objective': 'minimize',
    'num_trials': 4,
    'algorithm': 'random_search',
}
"""A search whose trials do not depend on each other."""


def search(**fields: Any) -> Search:
    return Search(**({'objective': LOSS, 'budget': Budget(4)} | fields))


def run(function: Callable[..., Any], callbacks: Any = (), **fields: Any) -> Study:
    study = open_study(None, SPACE, search=search(**fields))
    Tuner(study, FunctionRunner(function), callbacks).run()
    return study


def process_of(x: float) -> dict[str, float]:
    """Measures the process that it runs in."""
    return {'objective': x, 'process': os.getpid()}


def two(values: Any) -> Iterator[dict[str, float]]:
    yield {'loss': 2.0}
    yield {'loss': 1.0}


def slow(x: float) -> Iterator[dict[str, float]]:
    """Takes a second, in steps."""
    for step in range(1, 5):
        time.sleep(0.25)
        yield {'objective': x / step}
