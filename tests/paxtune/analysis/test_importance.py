"""Importance of decisions, compared with Optuna's on shared studies, and with exact values."""

import math
from collections.abc import Callable
from typing import Any

import optuna
import pyglove as pg
import pytest
from optuna.importance import FanovaImportanceEvaluator, get_param_importances

from paxtune.algorithms import RandomSearch
from paxtune.analysis.importance import Importances, importances
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.factories.studies import ask
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv

TOLERANCE, CONDITIONAL_TOLERANCE = 0.05, 0.12
"""Of shares from Optuna's, as docs/tuning/plots.md states them."""


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def study_of(value: Callable[[Any], float], count: int = 120, **space: Any) -> Study:
    """A study of random trials."""
    search = Search(MetricReward('minimize', 'y'), Budget(count), algorithm=RandomSearch())
    study = open_study(None, pg.Dict(**space), search=search)
    while (trial := study.ask()) is not None:
        study.tell(trial, {'y': value(trial.materialize())})
    return study


def shares(found: Importances) -> dict[str, float]:
    return {each.path: each.fanova for each in found.decisions}


def smooth(made: Any) -> float:
    """A function of ranges with an interaction: its optimum is at a learning rate of 0.01."""
    rate = math.log10(made.rate) + 2
    return rate**2 + 0.5 * math.sin(3 * made.dropout) + 0.3 * rate * made.momentum


def mixed(made: Any) -> float:
    """A function of choices, integers and ranges."""
    bonus = {'adam': 0.0, 'sgd': 1.5, 'lion': 0.4}[made.optimizer]
    return bonus + 0.02 * (made.width - 20) ** 2 / 20 + made.rate * 0.8 + 0.1 * made.layers


def conditional(made: Any) -> float:
    """A function with a choice that opens decisions."""
    kind = made.kind
    inner = 2 * (kind.gain - 0.3) ** 2 if 'gain' in kind else 1.0 + 0.5 * kind.slope
    return inner + made.x


RANGES = {
    'rate': pg.floatv(1e-4, 1.0, 'log'),
    'dropout': pg.floatv(0.0, 1.0),
    'momentum': pg.floatv(0.0, 1.0),
}
MIXED = {
    'optimizer': pg.oneof(['adam', 'sgd', 'lion']),
    'width': intv(1, 40),
    'rate': pg.floatv(0.0, 1.0),
    'layers': pg.oneof([1, 2, 4, 8]),
}
CONDITIONAL = {
    'kind': pg.oneof([pg.Dict(gain=pg.floatv(0.0, 1.0)), pg.Dict(slope=pg.floatv(0.0, 1.0))]),
    'x': pg.floatv(0.0, 1.0),
}


@pytest.mark.parametrize(('value', 'space'), [(smooth, RANGES), (mixed, MIXED)])
def test_fanova_agrees_with_optuna(value: Callable[[Any], float], space: dict[str, Any]) -> None:
    with study_of(value, **space) as study:
        theirs = get_param_importances(
            study.to_optuna(), evaluator=FanovaImportanceEvaluator(seed=0)
        )
        ours = shares(importances(study))
    assert ours == pytest.approx(theirs, abs=TOLERANCE)


def test_fanova_of_a_conditional_space_agrees_with_optuna() -> None:
    """Optuna sees the shared decisions of all trials, or the trials of one branch."""
    with study_of(conditional, **CONDITIONAL) as study:
        made, evaluator = study.to_optuna(), FanovaImportanceEvaluator(seed=0)
        shared = get_param_importances(made, evaluator=evaluator)
        branches = {
            name: get_param_importances(made, evaluator=evaluator, params=[name, 'x'])
            for name in ('kind.gain', 'kind.slope')
        }
        ours = shares(importances(study))
    assert {*shared} == {'kind', 'x'}
    share = ours['kind'] / (ours['kind'] + ours['x'])
    assert share == pytest.approx(shared['kind'], abs=CONDITIONAL_TOLERANCE)
    for name, theirs in branches.items():
        inside = 2 * ours[name]  # The branch is half of the space.
        share = inside / (inside + ours['x'])
        assert share == pytest.approx(theirs[name], abs=CONDITIONAL_TOLERANCE)


def test_shares_of_a_conditional_space_are_near_the_exact_variances() -> None:
    """The variances are integrals of `conditional`, halved for what one of two branches opens."""
    exact = {'kind': 0.2517, 'x': 0.0833, 'kind.gain': 0.0378, 'kind.slope': 0.0104}
    with study_of(conditional, **CONDITIONAL) as study:
        found = importances(study)
    total = sum(exact.values())
    expected = {path: variance / total for path, variance in exact.items()}
    assert shares(found) == pytest.approx(expected, abs=TOLERANCE)
    assert found.main_effects == pytest.approx(1.0, abs=TOLERANCE)
    assert sum(each.impurity for each in found.decisions) == pytest.approx(1.0)


def test_an_interaction_is_no_main_effect() -> None:
    sign = {'x': pg.floatv(-1.0, 1.0), 'y': pg.floatv(-1.0, 1.0), 'dull': pg.floatv(0.0, 1.0)}
    with study_of(lambda made: made.x * made.y, 200, **sign) as study:
        found = importances(study)
    assert found.main_effects < 0.4
    impurity = {each.path: each.impurity for each in found.decisions}
    assert min(impurity, key=impurity.__getitem__) == 'dull'


def test_the_same_trials_have_the_same_importance() -> None:
    with study_of(conditional, 12, **CONDITIONAL) as study:
        assert importances(study) == importances(study)


def test_only_completed_trials_count() -> None:
    with study_of(conditional, 6, **CONDITIONAL) as study:
        assert importances(study).num_trials == 6
    search = Search(MetricReward('minimize', 'y'), Budget(9), algorithm=RandomSearch())
    with open_study(None, pg.Dict(**CONDITIONAL), search=search) as study:
        for number in range(3):
            study.tell(ask(study), {'y': float(number)})
        trial = ask(study)
        trial.report(1, {'y': 9.0})
        trial.stop('worse than others')
        ask(study).fail('no memory')
        found = importances(study)
    assert (found.num_trials, found.decisions) == (3, [])


def test_a_metric_that_was_not_measured_is_refused() -> None:
    with study_of(conditional, 6, **CONDITIONAL) as study, pytest.raises(UserError, match='z: '):
        importances(study, 'z')
