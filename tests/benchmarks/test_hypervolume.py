"""The problems of `benchmarks/hypervolume.py`, and a run on one of them."""

import random
from typing import Any

import numpy as np
import pytest

from benchmarks.hypervolume import remaining
from benchmarks.search import cells
from benchmarks.search.front_searchers import make
from benchmarks.search.fronts import area, front_problems
from benchmarks.search.problems import drawn
from paxtune.analysis.hypervolume import volumes

PROBLEMS = front_problems()


@pytest.mark.parametrize('name', PROBLEMS)
def test_draws_dominate_less_than_the_best_front(name: str) -> None:
    problem, rng = PROBLEMS[name], random.Random(0)
    instance = problem.instance(3)
    objective: Any = instance.start()
    found = [objective(drawn(problem.parameters, rng)) for _ in range(400)]
    assert 0.0 < remaining(found, problem, instance.best) < 1.0
    points = np.array([each for each in found if each is not None])
    expected = volumes(-points, -np.array(problem.reference))[-1]
    assert area(points, problem.reference) == pytest.approx(expected)


def test_some_trials_are_infeasible() -> None:
    rng = random.Random(0)
    for name in ('c2_dtlz2', 'loss_and_size', 'binh_korn'):
        problem = PROBLEMS[name]
        objective = problem.instance(0).start()
        found = [objective(drawn(problem.parameters, rng)) for _ in range(200)]
        assert 0 < found.count(None) < 200


def test_a_run_has_a_value_of_each_objective() -> None:
    problem = PROBLEMS['loss_and_size']
    found = cells.run(make('quasi_random', problem, 0), problem.instance(0), 12)
    assert {len(each) for each in found['values'] if each is not None} == {2}
