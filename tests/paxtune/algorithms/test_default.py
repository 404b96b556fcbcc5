import io
from typing import Any

import pyglove as pg
import pytest
from rich.console import Console

from paxtune import Budget, MetricReward, Objectives, Search
from paxtune.algorithms import (
    NSGA2,
    Algorithm,
    Default,
    Grid,
    KnownValue,
    Portfolio,
    QuasiRandom,
    RandomSearch,
    RegularizedEvolution,
)
from paxtune.objectives.rewards import Reward
from paxtune.storage.open_study import open_study
from paxtune.terminal.progress import Progress
from tests.conformance.algorithm_suite import conditional, log_range, small
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv

RATE = pg.Dict(rate=pg.floatv(1e-4, 1e-1, 'log'))
LOSS = MetricReward('minimize', 'loss')


def _nested(levels: int) -> Any:
    value: Any = pg.floatv(0.0, 1.0)
    for _ in range(levels - 1):
        value = pg.oneof([pg.Dict(inside=value), None])
    return pg.Dict(x=value)


def _many(count: int) -> Any:
    return pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(count)})


@pytest.mark.pax(7, 'search_algorithm', 'hyperparameter_tuning(…)')
@pytest.mark.parametrize(
    ('space', 'rewards', 'expected', 'why'),
    [
        (small(), 1, Grid, '6 experiments'),
        (small(), 0, Grid, '6 experiments'),
        (pg.Dict(x=intv(1, 32)), 1, Grid, '32 experiments'),
        (pg.Dict(x=intv(1, 33)), 1, Portfolio, 'one reward, 1 decision'),
        (log_range(), 1, Portfolio, 'one reward, 2 decisions'),
        (conditional(), 1, Portfolio, 'one reward, 8 decisions'),
        (log_range(), 2, Portfolio, '2 rewards, 2 decisions'),
        (log_range(), 4, Portfolio, '4 rewards, 2 decisions'),
        (log_range(), 5, NSGA2, '5 rewards'),
        (_nested(4), 2, NSGA2, '4 decisions, in 4 levels'),
        (_many(51), 2, NSGA2, '51 decisions'),
        (log_range(), 0, QuasiRandom, 'no reward'),
        (_nested(3), 1, Portfolio, 'one reward, 3 decisions'),
        (_nested(4), 1, RegularizedEvolution, '4 decisions, in 4 levels'),
        (_many(50), 1, Portfolio, 'one reward, 50 decisions'),
        (_many(51), 1, RegularizedEvolution, '51 decisions'),
        (
            pg.Dict(x=pg.oneof([f'word {i}' for i in range(2001)])),
            1,
            RegularizedEvolution,
            '1 decision, one with more than 2000 candidates',
        ),
    ],
)
def test_the_algorithm_depends_on_the_space(
    space: Any, rewards: int, expected: type[Algorithm], why: str
) -> None:
    spec = pg.dna_spec(space)
    chosen = Default().resolved(spec, rewards)
    assert type(chosen) is expected
    chosen.check_space(spec, rewards)
    assert Default().why(spec, rewards) == why


def test_other_algorithms_resolve_to_themselves() -> None:
    algorithm = RandomSearch()
    assert algorithm.resolved(pg.dna_spec(RATE), 1) is algorithm


@pytest.mark.parametrize(
    ('search', 'expected'),
    [
        (Search(LOSS, Budget(5)), 'algorithm: Portfolio (default for one reward, 1 decision)'),
        (Search(LOSS, Budget(5), RandomSearch()), None),
    ],
)
def test_the_command_prints_the_chosen_algorithm(search: Search, expected: str | None) -> None:
    out = io.StringIO()
    with open_study(None, RATE, search=search) as study:
        Progress(Console(file=out, width=100)).on_study_start(study)
    assert out.getvalue().splitlines() == ([expected] if expected else [])


def test_a_study_uses_the_chosen_algorithm() -> None:
    with open_study(None, small(), search=Search(LOSS)) as study:
        found = []
        while (trial := study.ask()) is not None:
            found.append(tuple(trial.view.by_id.items()))
            study.tell(trial, {'loss': 1.0})
    assert len(found) == len(set(found)) == 6
    assert found != sorted(found), 'in an order that is drawn'


def _two() -> list[Reward]:
    return [LOSS, MetricReward('maximize', 'quality')]


def test_a_user_prior_requires_an_algorithm_that_uses_it() -> None:
    believed = {'rate': 0.01}
    for objective in (LOSS, Objectives(_two())):
        with open_study(None, RATE, search=Search(objective, Budget(5), prior=believed)) as study:
            assert study.suggester.context(1).prior == {'rate': KnownValue(0.01)}
    with pytest.raises(UserError, match=r'^search\.prior: .* does not use a prior.*Portfolio'):
        open_study(None, RATE, search=Search(LOSS, Budget(5), RandomSearch(), prior=believed))
    for wrong in ({'rte': 0.01}, {'rate': 7.0}):
        with pytest.raises(UserError, match=r'^search\.prior: r'):
            open_study(None, RATE, search=Search(LOSS, Budget(5), prior=wrong))
