"""Hypervolume, compared with Optuna's, and its history."""

import numpy as np
import optuna
import pytest

from paxtune.analysis.hypervolume import hypervolume_history, volumes
from paxtune.config.budget import Budget
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.factories.studies import ask
from tests.factories.toys import OBJECTIVES, search, toy
from trainer.symbolic.errors import UserError


@pytest.fixture
def study() -> Study:
    made = open_study(None, toy(search=search(objective=OBJECTIVES, budget=Budget(9))))
    for loss, accuracy in ((1.0, 0.2), (2.0, 0.1), (2.0, 0.6), (0.5, 0.8), (3.0, 0.9)):
        made.tell(ask(made), {'loss': loss, 'accuracy': accuracy})
    return made


@pytest.mark.parametrize('count', [2, 3, 4])
def test_hypervolume_agrees_with_a_monte_carlo_estimate(count: int) -> None:
    rng = np.random.default_rng(count)
    points = rng.random((12, count))
    drawn = rng.random((20_000, count))
    below = np.min(drawn[:, None, :] <= points[None], axis=2)
    assert volumes(points, np.zeros(count))[-1] == pytest.approx(
        np.mean(np.max(below, axis=1)), abs=0.015
    )


def test_points_below_the_reference_add_nothing() -> None:
    scores = np.array([[-1.0, 2.0], [2.0, 2.0], [9.0, -1.0]])
    assert volumes(scores, np.zeros(2)).tolist() == [0.0, 4.0, 4.0]
    assert volumes(scores[:0], np.zeros(2)).tolist() == []


@pytest.mark.filterwarnings('ignore::optuna.exceptions.ExperimentalWarning')
def test_the_history_is_that_of_optuna(study: Study) -> None:
    found = hypervolume_history(study, {'loss': 4.0, 'accuracy': 0.0})
    made = study.to_optuna()
    figure = optuna.visualization.plot_hypervolume_history(made, [4.0, 0.0])
    assert list(found.volumes) == pytest.approx(list(figure.data[0].y))
    assert [trial.id for trial in found.trials] == [1, 2, 3, 4, 5]


def test_the_default_reference_is_beyond_the_worst_values(study: Study) -> None:
    found = hypervolume_history(study)
    assert found.rewards == ['loss', 'accuracy']
    assert found.reference == pytest.approx([3.25, 0.02])
    assert (np.diff(found.volumes) >= 0).all()


def test_a_reference_must_name_the_rewards(study: Study) -> None:
    with pytest.raises(UserError, match='Did you mean loss'):
        hypervolume_history(study, {'losss': 1.0, 'accuracy': 0.0})
    with pytest.raises(UserError, match='no value of accuracy'):
        hypervolume_history(study, {'loss': 1.0})
    with open_study(None, toy(search=search())) as single, pytest.raises(UserError, match='has 1'):
        hypervolume_history(single)
