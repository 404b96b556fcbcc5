"""Studies in which nothing was measured start again with a corrected definition."""

from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.objectives.rewards import MetricReward
from paxtune.running.trial_errors import BadRewardError, StudyStoppedError
from paxtune.running.tuner import Paused
from paxtune.storage.open_study import load_study
from tests.factories.function_studies import SPACE
from tests.factories.studies import states
from tests.factories.tunables import rates
from trainer.symbolic.errors import UserError

LOSS, LOS = (MetricReward('minimize', name) for name in ('loss', 'los'))


def losses(x: Any) -> dict[str, float]:
    return {'loss': float(x)}


def test_a_wrong_metric_of_a_function_may_be_corrected(tmp_path: Path, caplog: Any) -> None:
    fields: dict[str, Any] = {'space': SPACE, 'num_trials': 3, 'job_log_dir': tmp_path}
    with pytest.raises(BadRewardError, match=r"'los' is not measured\. Did you mean loss"):
        tune(losses, objective=LOS, **fields)
    with tune(losses, objective=LOSS, **fields) as study:
        assert states(study) == ['COMPLETED'] * 3
        assert [trial.id for trial in study.trials] == [1, 2, 3]
    assert (
        f'starts again. The files of its trials are in {tmp_path}/replaced_trials_1' in caplog.text
    )
    assert len(list((tmp_path / 'replaced_trials_1').iterdir())) == 1
    with load_study(tmp_path) as loaded:
        assert loaded.rewards[0].metrics[0].name == 'loss'
    with pytest.raises(UserError, match=r'of another experiment(.|\n)*los(.|\n)*--job_log_dir'):
        tune(losses, objective=LOS, **fields)


def test_a_wrong_space_may_be_corrected(tmp_path: Path) -> None:
    def positive(x: float) -> float:
        if x < 0:
            raise ValueError('x is negative')
        return x

    fields: dict[str, Any] = {'objective': 'minimize', 'num_trials': 4, 'job_log_dir': tmp_path}
    with pytest.raises(StudyStoppedError, match='trials 1, 2 and 3 all raised'):
        tune(positive, space={'x': pg.floatv(-2.0, -1.0)}, **fields)
    with tune(positive, space={'x': pg.floatv(1.0, 2.0)}, **fields) as study:
        assert states(study) == ['COMPLETED'] * 4
        decisions = [trial.decisions for trial in study.trials]
    fields['job_log_dir'] = tmp_path / 'fresh'
    with tune(positive, space={'x': pg.floatv(1.0, 2.0)}, **fields) as fresh:
        assert [trial.decisions for trial in fresh.trials] == decisions


def test_trials_that_a_person_added_are_not_replaced(tmp_path: Path) -> None:
    fields: dict[str, Any] = {'space': SPACE, 'num_trials': 3, 'job_log_dir': tmp_path}
    with pytest.raises(BadRewardError):
        tune(losses, objective=LOS, **fields)
    with load_study(tmp_path, read_only=False) as study:
        study.add({'x': 5})
    with pytest.raises(UserError, match='of another experiment'):
        tune(losses, objective=LOSS, **fields)


@pytest.mark.slow
def test_an_experiment_that_was_never_measured_may_be_corrected(tmp_path: Path) -> None:
    heads = 'task__model__stack__layers[0]__attention__num_heads'
    made, interrupted = rates(1), iter([False, True])  # After the first step.
    with pytest.raises(Paused, match='interrupted'):
        tune(made, job_log_dir=tmp_path, should_interrupt=lambda: next(interrupted, True))
    with tune(rates(1, **{heads: 4}), job_log_dir=tmp_path) as study:
        assert states(study) == ['COMPLETED']
        assert study.trials[0].measurements[0].step == 2
    with pytest.raises(UserError, match='of another experiment'):
        tune(made, job_log_dir=tmp_path)
