"""Suggestions that are made beside training, which traces models in the same process."""

import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paxtune.algorithms.encoding.sampling import draw
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.limits import Limit
from paxtune.objectives.rewards import MetricReward
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.tuner import Tuner
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.suggester import Suggester
from tests.paxtune import asking, tunables
from tests.processes import command, passed

assert tunables.__name__  # Importing it makes its classes known to `load_study`.


def search(directory: Path, kill: str | None = None) -> Any:
    flags = ['--exp=tests.paxtune.asking.Ahead', f'--job_log_dir={directory}']
    return command('paxtune.search', *flags, kill=kill)


def told(directory: Path) -> list[Any]:
    """Results that a kill must not change, given correct suggestions."""
    with load_study(directory) as study:
        for trial in study.trials:
            assert study.suggester.next(trial.id)[0].decisions == trial.by_id
        return [
            (trial.decisions, trial.state, [(m.step, m.reward) for m in trial.measurements])
            for trial in study.trials
        ]


@pytest.mark.slow
def test_models_are_traced_beside_training_which_is_killed(tmp_path: Path) -> None:
    """Neither thread sees anything of the other."""
    passed(search(tmp_path / 'undisturbed'))
    expected = told(tmp_path / 'undisturbed')
    assert [state for _, state, _ in expected] == ['COMPLETED'] * 5
    for where in ('suggested:2', 'step:9'):
        done = search(tmp_path / 'killed', where)
        assert done.returncode == -signal.SIGKILL, done.stderr
    passed(search(tmp_path / 'killed'))
    assert told(tmp_path / 'killed') == expected


@pytest.mark.slow
def test_several_threads_look_at_the_costs_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """State of PyGlove, the trainer and JAX during tracing is thread-local."""
    made = asking.Ahead()
    space = Space(made)
    wanted = [draw(space.spec, random.Random(seed)) for seed in range(6)]

    def reasons(threads: int, at_most: float) -> list[str | None]:
        monkeypatch.setattr('trainer.program.costs._static', {})
        search = made.search.rebind({'limits': [Limit('num_params', at_most=at_most)]})
        suggestions = Suggester(space, search, [], list)
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(suggestions.why_infeasible, wanted))

    told: list[Any] = [float(text.split()[2].rstrip(',')) for text in map(str, reasons(1, 1.0))]
    middle = sum(told) / len(told)
    alone = reasons(1, middle)
    assert None in alone and set(alone) != {None}
    assert reasons(3, middle) == alone


def test_nothing_is_written_after_a_search(tmp_path: Path) -> None:
    before = threading.active_count()
    how = Search(
        MetricReward('minimize', 'y'),
        budget=Budget(8, target_reward=2.0),
        algorithm=asking.Digest(seconds=0.2),
    )
    with open_study(tmp_path, asking.space(), search=how) as study:
        Tuner(study, FunctionRunner(lambda value: {'y': value.x**2})).run()
        assert threading.active_count() == before
        assert [trial.state for trial in study.trials] == ['COMPLETED', 'REQUESTED']
