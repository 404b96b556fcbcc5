"""The problems, cells and figures of `benchmarks/search_quality.py`."""

import math
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks import portfolio_limits, search_quality
from benchmarks.search import bbob, cells, goals, ours, regret, tables
from benchmarks.search.latency import crowded
from benchmarks.search.limited_portfolio import LimitedPortfolio
from benchmarks.search.methods import (
    LIMITED,
    LIMITS,
    METHODS,
    PEERS,
    ROOT,
    fingerprint,
    is_available,
    sources_of,
)
from benchmarks.search.problems import Problem, Value, drawn, problems
from paxtune.algorithms import Default, Portfolio, RandomSearch

NOWHERE = Path('/nowhere')
PROBLEMS = problems(NOWHERE)


def small_table() -> Problem:
    hp = np.array([[1e-4, 0.9], [1e-3, 0.99], [1e-2, 0.999]])
    return tables.table_problem('small', ['rate', 'beta1'], hp, np.array([3.0, math.nan, 1.0]))


@pytest.mark.parametrize('name', bbob.NAMES)
@pytest.mark.parametrize('dimension', [4, 20])
def test_functions_are_smallest_at_their_optimum(name: str, dimension: int) -> None:
    function = bbob.function(name, dimension, seed=3)
    optimum, rng = function.optimum, np.random.default_rng(0)
    assert np.abs(optimum).max() <= bbob.BOUND
    assert function.of(optimum[None]) == pytest.approx(0, abs=1e-9)
    anywhere = rng.uniform(-bbob.BOUND, bbob.BOUND, (200, dimension))
    near = optimum + rng.normal(0, 0.01, (200, dimension))
    assert function.of(np.concatenate([anywhere, near])).min() > 0


def test_functions_have_the_values_of_their_definition() -> None:
    # Only values of a rotated function that rotations keep are known by hand.
    rastrigin = bbob.function('rastrigin', 4, 0)
    step = np.array([1.0, 0.0, 0.0, 0.0])
    assert rastrigin.of((rastrigin.optimum - step)[None]) == pytest.approx(1.0)
    # The sum of the second derivatives at the optimum: 802, 1002 for each in between, 200.
    rosenbrock, h = bbob.function('rosenbrock', 4, 0), 1e-4
    around = rosenbrock.optimum + h * np.concatenate([np.eye(4), -np.eye(4)])
    assert rosenbrock.of(around).sum() / h**2 == pytest.approx(3006, rel=1e-4)


def test_each_seed_has_an_instance_of_its_own_that_stays() -> None:
    first, again = (bbob.function('gallagher', 4, 1).optimum for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, bbob.function('gallagher', 4, 2).optimum)


@pytest.mark.parametrize('name', ['rastrigin_4', 'mixed', 'conditional'])
@pytest.mark.parametrize('seed', range(5))
def test_the_known_optimum_is_the_best(name: str, seed: int) -> None:
    problem = PROBLEMS[name]
    instance, rng = problem.instance(seed), random.Random(seed)
    objective = instance.start()
    assert instance.optimum is not None
    assert objective(instance.optimum) == pytest.approx(instance.best, abs=1e-9)
    values = [objective(drawn(problem.parameters, rng)) for _ in range(500)]
    assert all(value is None or instance.best < value for value in values)
    assert np.median([value for value in values if value is not None]) == pytest.approx(
        instance.median, rel=0.3
    )


def test_some_conditional_trials_are_infeasible() -> None:
    problem = PROBLEMS['conditional']
    objective, rng = problem.instance(0).start(), random.Random(0)
    values = [objective(drawn(problem.parameters, rng)) for _ in range(500)]
    assert 0 < values.count(None) < 100


def test_a_table_answers_with_the_nearest_row_that_was_not_used() -> None:
    problem = small_table()
    assert [each.name for each in problem.parameters] == ['rate', 'one_minus_beta1']
    instance = problem.instance(0)
    assert (instance.best, instance.median) == (1.0, 2.0)
    asked = {'rate': 1.1e-2, 'one_minus_beta1': 1.2e-3}
    objective = instance.start()
    assert [objective(asked) for _ in range(3)] == [1.0, None, 3.0]
    assert instance.start()(asked) == 1.0, 'another run has used none'


def test_tables_that_are_not_there_are_named() -> None:
    assert tables.missing(NOWHERE) == list(tables.NAMES)
    assert not any(name in PROBLEMS for name in tables.NAMES)


@pytest.mark.parametrize('name', ['mixed', 'conditional'])
def test_suggestions_of_ours_have_the_values_that_are_open(name: str) -> None:
    problem = PROBLEMS[name]
    study = ours.Study(RandomSearch(), problem, 0)
    for trial in range(20):
        values = study.ask()
        _check_values(problem, values)
        study.tell(None if trial % 3 else 1.0)
    states = [str(each.status) for each in study.study.trials[:3]]
    assert states == ['completed', 'infeasible', 'infeasible']


@pytest.mark.parametrize('name', ['mixed', 'conditional'])
def test_observed_values_are_decisions(name: str) -> None:
    problem, rng = PROBLEMS[name], random.Random(0)
    study = ours.Study(RandomSearch(), problem, 0)
    told = [drawn(problem.parameters, rng) for _ in range(10)]
    for values in told:
        study.add(values, 1.0)
    read = [ours.values_of(problem, trial.by_id) for trial in study.study.trials]
    assert read == told


def _check_values(problem: Problem, values: Mapping[str, Value]) -> None:
    for each in problem.parameters:
        is_open = each.condition is None or values.get(each.condition[0]) == each.condition[1]
        assert (each.name in values) == is_open
        if is_open:
            value = values[each.name]
            assert value in each.values if each.values else each.low <= float(value) <= each.high


class Infeasible:
    """A method whose trials are all infeasible."""

    def __init__(self) -> None:
        self.told: list[float | None] = []

    def ask(self) -> Mapping[str, Value]:
        return {'rate': 1e-3, 'one_minus_beta1': 1e-2}

    def tell(self, value: float | None) -> None:
        self.told.append(value)

    def add(self, values: Mapping[str, Value], value: float | None) -> None:
        raise NotImplementedError


def test_infeasible_trials_have_no_value() -> None:
    searcher = Infeasible()
    found = cells.run(searcher, small_table().instance(0), 1)
    assert found['values'] == searcher.told == [None]
    assert regret.regret(found['values'], small_table().instance(0), 1) == 1.0


def test_a_cell_is_kept_for_the_key_and_the_trials_that_it_has(tmp_path: Path) -> None:
    cell = cells.Cell('random_search', 'mixed', 0, 2, 'key')
    assert cell.read(tmp_path) is None
    cell.write(tmp_path, {'values': [1.0, None], 'seconds': [0.1, 0.1]})
    assert cell.read(tmp_path) == {'values': [1.0, None], 'seconds': [0.1, 0.1]}
    assert cells.Cell('random_search', 'mixed', 0, 1, 'key').read(tmp_path) is not None
    assert cells.Cell('random_search', 'mixed', 0, 3, 'key').read(tmp_path) is None
    assert cells.Cell('random_search', 'mixed', 0, 2, 'other').read(tmp_path) is None


def test_methods_have_distinct_fingerprints() -> None:
    there = [each for each in (*METHODS, *LIMITED) if is_available(each)]
    assert len({fingerprint(each) for each in there}) == len(there) > 3


def test_a_fingerprint_covers_all_modules_of_an_algorithm() -> None:
    of_random, of_default = (
        {file.name for file in sources_of(kind)} for kind in (RandomSearch, Default)
    )
    assert {'random_search.py', 'sampling.py'} < of_random
    assert {'default.py', 'bandit.py', 'acquisition.py', 'sampling.py'} < of_default
    assert 'default.py' not in of_random


def test_the_default_runs_as_what_it_is() -> None:
    assert ours.twin(PROBLEMS['mixed'], ['random_search', 'portfolio']) == 'portfolio'
    assert ours.twin(PROBLEMS['mixed'], ['random_search']) is None


def test_an_interrupted_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        f'--cache_dir={tmp_path}',
        '--quick',
        '--only=random_search',
        '--problems=conditional',
        f'--data_dir={NOWHERE}',
    ]
    assert search_quality.main(flags) == 0
    first = capsys.readouterr().out.splitlines()
    assert '2 cells, 2 of them to be run' in first
    kept = sorted((tmp_path / 'random_search' / 'conditional').iterdir())
    kept[0].unlink()
    before = kept[1].stat().st_mtime_ns
    assert search_quality.main(flags) == 0
    second = capsys.readouterr().out.splitlines()
    assert '2 cells, 1 of them to be run' in second
    assert second[-1] == first[-1], 'the same run again'
    assert kept[1].stat().st_mtime_ns == before


def test_ratios() -> None:
    rng = np.random.default_rng(0)
    ours_, rival = ({str(i): rng.normal(size=5) for i in range(8)} for _ in range(2))
    twice = {name: values + math.log(2) for name, values in ours_.items()}
    found = regret.ratios(ours_, [twice, twice])
    assert found.overall.value == pytest.approx(0.5)
    assert found.each.value == pytest.approx(0.5)
    assert found.overall.low < 0.5 < found.overall.high
    assert (
        regret.ratios(ours_, [rival, twice]).each.value
        >= regret.ratios(ours_, [rival, twice]).overall.value
    )
    worse = {name: values + math.log(100) for name, values in ours_.items()}
    assert regret.behind(worse, [ours_, twice]) == sorted(ours_)
    assert regret.behind(ours_, [worse, twice]) == []


def test_a_rival_is_compared_where_it_is() -> None:
    names = 'abcd'
    ours_, strong, weak = ({name: np.full(3, value) for name in names} for value in (0, 1, 2))
    here = {'a': strong['a'] - 2}  # Ahead, but only on one problem.
    found = regret.ratios(ours_, [weak, here])
    assert found.overall.value == pytest.approx(math.e)
    assert found.each.value == pytest.approx(math.exp((1 - 2 - 2 - 2) / 4))
    assert regret.on_problem('a', ours_, [weak, here]).value == pytest.approx(math.e)
    assert regret.behind(ours_, [weak, here]) == ['a']
    assert regret.ratios(ours_, [weak]).overall.high == pytest.approx(math.exp(-2))


def test_goals_are_about_the_best_peer_on_tables(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = goals.TABLES[:2]
    level = {name: np.zeros(3) for name in (first, second, 'mixed')}
    logs: dict[str, regret.Logs] = {
        'default': level,
        PEERS[0]: {name: values + 1 for name, values in level.items()},
        PEERS[1]: {first: np.full(3, -0.2), second: np.full(3, 0.8)},
    }
    found = goals.to_peers(50, logs)
    assert found['default_to_peers_tables_50'] == pytest.approx(math.exp(-0.3))
    assert found[f'default_to_peers_{first}_50'] == pytest.approx(math.exp(0.2))
    assert f'behind on: {first}\n' in capsys.readouterr().out
    (single, upper) = goals.missed(found, 50, (50,))
    assert single == f'{first} after 50: 1.22, at most 1.1'
    assert upper.startswith('upper end on the tables after 50: ')
    assert goals.missed({}, 50, ()) == ['lower end after 50: 2, at most 1.0']


def test_each_peer_has_requirements_of_its_own() -> None:
    folder = ROOT / 'benchmarks' / 'requirements'
    assert {'hebo', 'smac', 'ax'} < set(PEERS)
    for method in METHODS:
        assert (folder / f'{method.where}.txt').exists() == method.is_peer


def test_limits_of_the_portfolio() -> None:
    low, high = LIMITS[portfolio_limits.CURRENT]
    for information in (0.0, 0.3, 0.45, 1.0):
        share = LimitedPortfolio(low=low, high=high).gp_share(information)
        assert share == pytest.approx(Portfolio().gp_share(information))
        assert [
            LimitedPortfolio(low=limit, high=limit).gp_share(information)
            for limit in (math.inf, -math.inf)
        ] == [0, 1]


def test_limits_are_chosen_without_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    values = {'always_tpe': (0.0, 0.0, 3.0), portfolio_limits.CURRENT: (1.0, 1.0, 0.0)}
    logs = {
        name: {problem: np.full(2, each) for problem, each in zip('abc', its, strict=True)}
        for name, its in values.items()
    }
    found = portfolio_limits.show(logs, 'problem', {'a': ['a'], 'c': ['c']})
    assert found['problem_chosen_to_current'] == pytest.approx(math.exp((0 + 3) / 2))
    assert found['problem_chosen_to_best'] == pytest.approx(math.exp((1 + 3) / 2))
    assert portfolio_limits.CURRENT in capsys.readouterr().out


def test_the_interval_of_what_does_not_vary_is_a_point() -> None:
    found = regret.over_seeds(regret.logs([0.1] * 5))
    assert (found.low, found.value, found.high) == pytest.approx((0.1, 0.1, 0.1))
    assert regret.over_seeds(regret.logs([0.0])).value == pytest.approx(regret.FLOOR)


@pytest.mark.parametrize(('rewards', 'name'), [(1, '2 running'), (2, '2 rewards, 2 running')])
def test_suggestions_are_timed_while_trials_run(rewards: int, name: str) -> None:
    (figure,) = crowded(rewards, 2, sizes=[2], later=2)
    assert figure['method'] == f'default, {name}'
    assert len(figure['seconds']) == 3 and min(figure['seconds']) > 0
