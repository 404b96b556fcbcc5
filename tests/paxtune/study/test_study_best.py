"""`best_trial`, `best_params` and `best_value` of a study."""

from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.study import Study
from tests.factories.function_studies import SPACE, search
from trainer.symbolic.errors import UserError

NAMES = ('best_trial', 'best_params', 'best_value')


def refusal(study: Study, name: str) -> str:
    with pytest.raises(UserError) as refused:
        getattr(study, name)
    return str(refused.value)


def test_a_study_has_its_best_under_the_names_of_other_tuners(tmp_path: Path) -> None:
    def train(x: int, kind: str) -> float:
        return x + (kind == 'b')

    space = {'x': pg.oneof([3, 1, 2]), 'kind': pg.oneof(['a', 'b'])}
    with tune(train, space=space, objective='minimize', job_log_dir=tmp_path) as study:
        assert study.best_params == {'x': 1, 'kind': 'a'}
        assert train(**study.best_params) == study.best_value == 1.0
        assert study.best is not None and study.best_trial.id == study.best.id
        study.best_params.clear()
        assert study.best_params
    with load_study(tmp_path) as loaded:
        assert (loaded.best_params, loaded.best_value) == ({'x': 1, 'kind': 'a'}, 1.0)


@pytest.mark.parametrize('name', NAMES)
def test_a_study_without_a_best_says_why(name: str) -> None:
    study = open_study(None, SPACE, search=search())
    assert refusal(study, name) == 'no trial of the study was completed (it has none)'
    trial = study.ask()
    assert trial is not None
    trial.fail('the loss is 1e9')
    assert refusal(study, name).endswith('was completed (1 infeasible): the loss is 1e9')
    several = [MetricReward('minimize', each) for each in ('loss', 'size')]
    study = open_study(None, SPACE, search=search(objective=Objectives(several)))
    assert 'no trial is the best in several objectives (loss, size)' in refusal(study, name)
    study = open_study(None, SPACE, search=search(objective=None))
    assert refusal(study, name) == 'no trial of the study is the best: it has no objective'


def test_a_trial_that_was_stopped_early_is_counted() -> None:
    study = open_study(None, SPACE, search=search())
    trial: Any = study.ask()
    trial.report(1, {'loss': 1.0})
    trial.stop('it is slow')
    assert 'was completed (1 stopped)' in refusal(study, 'best_params')
