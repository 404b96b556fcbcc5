"""Arguments of `paxtune.tune` of a wrong type or out of range: one message with their names."""

from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

import paxtune
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.engines.threads import Threads
from paxtune.engines.workers import Workers
from trainer.symbolic.errors import UserError

TEXT: Any = 'a'
PART: Any = 1.5

ARGUMENTS: list[tuple[str, Any, str]] = [
    ('num_trials', 'a', "num_trials: expected an integer or None, got 'a'"),
    ('num_trials', 2.5, 'num_trials: expected an integer or None, got 2.5'),
    ('num_trials', True, 'num_trials: expected an integer or None, got True'),
    ('num_trials', 0, 'num_trials must be at least 1: 0'),
    ('seed', 1.5, 'seed: expected an integer, got 1.5'),
    ('job_log_dir', '', "job_log_dir: expected the path of a directory, not ''"),
    ('job_log_dir', b'x', "job_log_dir: expected the path of a directory, not b'x'"),
    ('algorithm', paxtune.RandomSearch, 'got the class RandomSearch: write RandomSearch(…)'),
    ('algorithm', ['tpe'], "algorithm: expected Algorithm or "),
    ('scheduler', False, 'scheduler: expected Scheduler or '),
    ('engine', 'threads', "engine: expected an engine, such as Threads(2), not 'threads'"),
    ('engine', Threads, 'engine: expected an engine, such as Threads(2), not <class '),
    ('workers', 0, 'workers: expected an integer of at least 1, not 0'),
    ('workers', 1.5, 'workers: expected an integer of at least 1, not 1.5'),
    ('workers', True, 'workers: expected an integer of at least 1, not True'),
    ('callbacks', print, 'callbacks: expected a list of callbacks and of functions of a study'),
    ('callbacks', [3], 'callbacks: expected a list of callbacks'),
    ('callbacks', [paxtune.Progress], 'callbacks: expected a list of callbacks'),
    ('prior_studies', '/studies', "prior_studies: expected a list of directories, not '/studies'"),
    ('prior_studies', [3], 'prior_studies: expected a list of directories, not [3]'),
    ('fork_study', 3, 'fork_study: expected the directory of a study, not 3'),
    ('study', 3, 'study: expected a study in memory, not 3'),
    ('should_interrupt', True, 'should_interrupt: expected a function without arguments, not True'),
    ('budget', {'hours': 1}, "budget: expected Budget, got {'hours': 1}"),
    ('limits', [3], 'limits[0]: expected Limit, got 3'),
    ('constraints', 3, 'constraints: expected a list, each item Constraint or '),
    ('initial_trials', {'x': 1}, 'initial_trials: expected a list, each item a mapping, got {'),
    ('prior', [], 'prior: expected a mapping or None, got []'),
    ('replicates', 0, 'replicates must be at least 1: 0'),
    ('warm_start', 'x', "warm_start: expected 'parent' or None, got 'x'"),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'value', 'message'), ARGUMENTS)
def test_an_argument_that_does_not_fit_is_named(name: str, value: Any, message: str) -> None:
    given: dict[str, Any] = {'space': {'x': pg.floatv(0.0, 1.0)}, 'objective': 'minimize'}
    with pytest.raises(UserError) as raised:
        paxtune.tune(lambda x: x, **{**given, 'num_trials': 1, name: value})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: Budget('a'), "Budget.trials: expected an integer or None, got 'a'"),
        (lambda: Budget(hours='1'), "Budget.hours: expected a number or None, got '1'"),
        (lambda: Search(None, warm_start='x'), "Search.warm_start: expected 'parent' or None"),
        (lambda: Search(None, seed=None), 'Search.seed: expected an integer, got None'),
        (lambda: Search(None, limits=[3]), r'Search.limits\[0\]: expected Limit, got 3'),
        (
            lambda: Search(None).rebind({'budget.trials': 'a'}),
            "Search.budget.trials: expected an integer or None, got 'a'",
        ),
        (lambda: paxtune.Asha(min_resource='a'), "Asha.min_resource: expected a number, got 'a'"),
        (lambda: paxtune.MetricReward('min', 'loss'), "MetricReward.goal: expected 'minimize' or"),
        (lambda: paxtune.Grid(points_per_range=1.5), 'Grid.points_per_range: expected an integer'),
    ],
)
def test_a_field_that_does_not_fit_is_named(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: Threads(TEXT), "Threads.count: expected an integer of at least 1, not 'a'"),
        (lambda: Threads(PART), 'Threads.count: expected an integer of at least 1, not 1.5'),
        (lambda: Workers(0), 'Workers.count: expected an integer of at least 1, not 0'),
        (lambda: Workers(2, pack=0), 'Workers.pack: expected an integer of at least 1, not 0'),
        (
            lambda: Workers(memory_gb=TEXT),
            r"Workers.memory_gb \(--worker_memory\): expected a number above 0, not 'a'",
        ),
        (lambda: Workers(memory_gb=0), 'expected a number above 0, not 0'),
    ],
)
def test_a_field_of_an_engine_that_does_not_fit_is_named(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_paths_may_be_of_any_kind(tmp_path: Path) -> None:
    given: dict[str, Any] = {'space': {'x': pg.floatv(0.0, 1.0)}, 'objective': 'minimize'}
    for directory in (tmp_path / 'a', str(tmp_path / 'b')):
        paxtune.tune(lambda x: x, num_trials=1, job_log_dir=directory, **given).close()
    priors = {tmp_path / 'a'}
    paxtune.tune(lambda x: x, num_trials=1, prior_studies=priors, algorithm='gp', **given).close()
