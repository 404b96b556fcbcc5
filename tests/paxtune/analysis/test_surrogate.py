"""The model of a study: predictions, cross-validation, effects and Sobol indices."""

import math
from typing import Any

import numpy as np
import pyglove as pg
import pytest

from paxtune.algorithms import RandomSearch
from paxtune.analysis import effects
from paxtune.analysis.surrogate import Surrogate, fitted
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from trainer.symbolic.errors import UserError


def smooth(made: Any) -> float:
    """A sum: 'x' and 'kind' matter, 'rate' less, 'dull' not at all."""
    return (made.x - 0.3) ** 2 + 0.1 * math.log10(made.rate) + {'a': 0.0, 'b': 0.5}[made.kind]


SPACE = {
    'x': pg.floatv(-1.0, 1.0),
    'rate': pg.floatv(1e-3, 1.0, scale='log'),
    'kind': pg.oneof(['b', 'a']),
    'dull': pg.floatv(0.0, 1.0),
}


def study_of(goal: str = 'minimize', count: int = 60, noise: float = 0.0) -> Study:
    search = Search(MetricReward(goal, 'y'), Budget(count), algorithm=RandomSearch())
    study = open_study(None, pg.Dict(**SPACE), search=search)
    rng, sign = np.random.default_rng(0), 1.0 if goal == 'minimize' else -1.0
    while (trial := study.ask()) is not None:
        value = smooth(trial.materialize()) + noise * rng.normal()
        study.tell(trial, {'y': sign * value})
    return study


@pytest.fixture(scope='module')
def study() -> Study:
    return study_of()


@pytest.fixture(scope='module')
def model(study: Study) -> Surrogate:
    found = fitted(study)
    assert found is not None
    return found


def test_predictions_are_in_the_units_of_the_reward(model: Surrogate) -> None:
    rows = np.random.default_rng(1).random((50, 4))
    found = model.predict(rows)
    wanted = [smooth(pg.Dict(**_decoded(model, row))) for row in rows]
    assert np.corrcoef(found.mean, wanted)[0, 1] > 0.98
    assert np.abs(found.mean - wanted).mean() < 0.1
    assert (found.low < found.mean).all()
    assert (found.mean < found.high).all()


def _decoded(model: Surrogate, row: np.ndarray) -> dict[str, Any]:
    decisions = model.space.decode(row)
    return decisions | {'kind': ['b', 'a'][int(decisions['kind'])]}


def test_a_maximized_reward_is_predicted_as_the_minimized_one(model: Surrogate) -> None:
    other = fitted(study_of('maximize'))
    assert other is not None
    rows = np.random.default_rng(1).random((5, 4))
    assert other.predict(rows).mean == pytest.approx(-model.predict(rows).mean)
    assert other.predict(rows).low == pytest.approx(-model.predict(rows).high)
    assert other.best.id == model.best.id


def test_cross_validation_predicts_what_the_model_has_not_seen(model: Surrogate) -> None:
    found = model.cross_validate()
    assert found.r_squared > 0.9
    assert found.coverage >= 0.85
    assert np.corrcoef(found.observed, found.predicted.mean)[0, 1] > 0.95


def test_cross_validation_is_that_of_a_model_without_the_trial(model: Surrogate) -> None:
    from paxtune.algorithms.gp.model import matern52

    kernel = matern52(
        math.sqrt(5.0)
        * np.linalg.norm(model.posterior.points[:, None] - model.posterior.points[None], axis=2)
    )
    inverse = np.linalg.pinv(model.posterior.inverse_cholesky)
    covariance = inverse @ inverse.T
    noise = covariance[0, 0] - model.posterior.amplitude
    assert noise >= 0.0
    covariance = model.posterior.amplitude * kernel + noise * np.eye(len(kernel))
    others = np.arange(len(kernel)) != 7
    weights = np.linalg.solve(covariance[np.ix_(others, others)], model.warped[others])
    mean = covariance[7, others] @ weights
    wanted = model.in_units(np.array([mean]), np.zeros(1)).mean[0]
    assert model.cross_validate().predicted.mean[7] == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_cross_validation_of_noise_explains_nothing() -> None:
    found = fitted(study_of(noise=100.0))
    assert found is not None
    assert found.cross_validate().r_squared < 0.2


def test_a_model_needs_different_values() -> None:
    assert fitted(study_of(count=4)) is None
    with pytest.raises(UserError, match='no such reward or metric'):
        fitted(study_of(count=4), 'z')


def test_an_effect_follows_the_function(study: Study, model: Surrogate) -> None:
    found = effects.effect(model, study.space, 'x')
    assert found is not None
    lowest = found.values.numbers[int(np.argmin(found.predicted.mean))]
    assert lowest == pytest.approx(0.3, abs=0.15)
    assert found.values.best == model.best.decisions['x']
    kinds = effects.effect(model, study.space, 'kind')
    assert kinds is not None
    assert kinds.values.labels == ('b', 'a')
    assert kinds.predicted.mean[0] - kinds.predicted.mean[1] == pytest.approx(0.5, abs=0.1)
    rates = effects.effect(model, study.space, 'rate')
    assert rates is not None
    assert rates.values.is_log
    assert rates.values.numbers[[0, -1]] == pytest.approx([1e-3, 1.0])


def test_a_surface_has_the_effect_of_its_row(study: Study, model: Surrogate) -> None:
    found = effects.surface(model, study.space, 'x', 'kind')
    assert found is not None
    assert found.mean.shape == found.width.shape == (2, 25)
    best = int(found.y.best)
    line = effects.effect(model, study.space, 'x')
    assert line is not None
    ends = line.predicted.mean[[0, -1]]
    assert found.mean[best, [0, -1]] == pytest.approx(ends)


def test_sobol_indices_are_those_of_the_function(model: Surrogate) -> None:
    found = {each.path: each for each in effects.sensitivities(model)}
    # Exact variances of the terms: (x - 0.3)², 0.1 log10(rate) and the choice.
    terms = {'x': 4 / 45 + 0.36 / 3, 'rate': 0.01 * 9 / 12, 'kind': 0.25 / 4, 'dull': 0.0}
    total = sum(terms.values())
    for path, term in terms.items():
        assert found[path].first == pytest.approx(term / total, abs=0.08)
        assert found[path].total == pytest.approx(term / total, abs=0.08)
    assert found['x'].trend < -0.3
    assert math.isnan(found['kind'].trend)


def test_decisions_of_other_branches_have_no_effect() -> None:
    space = pg.Dict(kind=pg.oneof([pg.Dict(gain=pg.floatv(0.0, 1.0)), 'none']))
    search = Search(MetricReward('minimize', 'y'), Budget(20), algorithm=RandomSearch())
    study = open_study(None, space, search=search)
    while (trial := study.ask()) is not None:
        kind = trial.materialize().kind
        study.tell(trial, {'y': -1.0 if kind == 'none' else float(kind.gain)})
    model = fitted(study)
    assert model is not None
    assert effects.paths_of_best(model) == ['kind']
    (gain,) = [path for path in study.space.short_names if path != 'kind']
    assert effects.effect(model, study.space, gain) is None
    assert effects.surface(model, study.space, 'kind', gain) is None
