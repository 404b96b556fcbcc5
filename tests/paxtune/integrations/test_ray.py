"""Ray Tune drives experiments of paxtune."""

import subprocess
import sys

import pytest

from paxtune.integrations.ray import trainable
from tests.paxtune.tunables import Rates
from tests.processes import ROOT, environment
from tests.ray_cluster import ENVIRONMENT
from trainer.symbolic.errors import UserError

TUNED = """
import os
import sys

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from paxtune.integrations.ray import trainable
from tests.paxtune.tunables import Rates

rate = 'task.learner.learning_rate'
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=2**27)
tuner = tune.Tuner(
    tune.with_resources(trainable(Rates()), {'cpu': 1}),
    param_space={
        rate: tune.grid_search([1e-3, 1e-2]),
        'train.checkpoints.every': 2,
        'train.evaluation.every': 2,
    },
    tune_config=tune.TuneConfig(
        metric='eval/log_pplx',
        mode='min',
        scheduler=ASHAScheduler('step', max_t=6, grace_period=2),
    ),
    run_config=tune.RunConfig(storage_path=sys.argv[1]),
)
results = tuner.fit()
assert not results.errors, results.errors
steps = sorted(result.metrics['step'] for result in results)
assert steps[-1] == 6, steps
best = results.get_best_result()
with best.checkpoint.as_directory() as directory:
    assert os.path.isdir(os.path.join(directory, 'checkpoints', '6')), os.listdir(directory)
print('best', best.config[rate], best.metrics['eval/log_pplx'])
"""


@pytest.mark.slow
def test_asha_of_ray_tune_stops_and_compares_trials(tmp_path):
    done = subprocess.run(
        [sys.executable, '-c', TUNED, str(tmp_path)],
        env={**environment(), **ENVIRONMENT},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=550,
    )
    assert done.returncode == 0, f'{done.stdout}\n{done.stderr}'
    assert 'best 0.01 ' in done.stdout


def test_values_that_fit_no_decision_are_refused():
    train = trainable(Rates())
    with pytest.raises(UserError, match='learning_rate must be'):
        train({'task.learner.learning_rate': 7.0})
    with pytest.raises(UserError, match='momentum'):
        train({'task.learner.learning_rate': 0.01, 'task.learner.momentum': 0.5})
