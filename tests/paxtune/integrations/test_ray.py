"""Ray Tune drives experiments of paxtune."""

import subprocess
import sys

import pytest

from paxtune.integrations.ray import trainable
from tests.factories.tunables import Rates
from tests.servers.processes import ROOT, environment
from tools.servers.ray_cluster import ENVIRONMENT
from trainer.symbolic.errors import UserError

PRELUDE = """
import os
import signal
import sys

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

from paxtune.integrations.ray import trainable
from tests.factories.tunables import Rates

RATE = 'task.learner.learning_rate'
EVERY = {'train.checkpoints.every': 2, 'train.evaluation.every': 2}

train = trainable(Rates())


def tuner(name, run, rates, scheduler=None):
    return tune.Tuner(
        tune.with_resources(run, {'cpu': 1}),
        param_space={RATE: tune.grid_search(rates), **EVERY},
        tune_config=tune.TuneConfig(metric='eval/log_pplx', mode='min', scheduler=scheduler),
        run_config=tune.RunConfig(name, sys.argv[1]),
    )


def steps(result):
    return list(result.metrics_dataframe['step'])


ray.init('local', num_cpus=2, include_dashboard=False, object_store_memory=2**27)
"""

ASHA = """
scheduler = ASHAScheduler('step', max_t=6, grace_period=2)
results = tuner('asha', train, [1e-3, 1e-2], scheduler).fit()
assert not results.errors, results.errors
assert max(result.metrics['step'] for result in results) == 6, results
best = results.get_best_result()
with best.checkpoint.as_directory() as directory:
    assert os.path.isdir(os.path.join(directory, 'checkpoints', '6')), os.listdir(directory)
print('best', best.config[RATE])
"""

RESTORED = """
def lost(config):
    report = tune.report

    def report_or_die(metrics, checkpoint):
        report(metrics, checkpoint=checkpoint)
        if metrics['step'] == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    if tune.get_checkpoint() is None:
        tune.report = report_or_die
    train(config)


(calm,) = tuner('calm', train, [1e-2]).fit()
assert len(tuner('lost', lost, [1e-2]).fit().errors) == 1
path = os.path.join(sys.argv[1], 'lost')
again = tune.Tuner.restore(path, tune.with_resources(lost, {'cpu': 1}), resume_errored=True)
(restored,) = again.fit()
assert steps(calm) == steps(restored) == [2, 4, 6], (steps(calm), steps(restored))
for name in ('eval/log_pplx', 'eval/loss'):
    found = [list(each.metrics_dataframe[name]) for each in (calm, restored)]
    assert found[0] == found[1], (name, found)
print('restored')
"""

EXPLOITED = """
scheduler = PopulationBasedTraining(
    'step',
    perturbation_interval=2,
    hyperparam_mutations={RATE: tune.loguniform(1e-3, 1e-2)},
    quantile_fraction=0.5,
    resample_probability=0.0,
    synch=True,
)
results = tuner('pbt', train, [1e-4, 1e-2], scheduler).fit()
assert not results.errors, results.errors
# One that exploits the other continues after its step, and has the last step again.
for found in map(steps, results):
    assert found[-1] == 6 and {*found} <= {2, 4, 6}, found
    assert found[:-1] == sorted({*found[:-1]}), found
rates = {result.config[RATE] for result in results}
assert rates != {1e-4, 1e-2}, rates
print('exploited')
"""

_SAID = ['best 0.01', 'restored', 'exploited']


@pytest.mark.slow(reason='Ray starts a process for each of eight trials')
@pytest.mark.timeout(1800)
def test_ray_tune_stops_restores_and_exploits_trials(tmp_path):
    done = subprocess.run(
        [sys.executable, '-c', PRELUDE + ASHA + RESTORED + EXPLOITED, str(tmp_path)],
        env={**environment(), **ENVIRONMENT},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1700,
    )
    assert done.returncode == 0, f'{done.stdout}\n{done.stderr}'
    said = done.stdout.splitlines()
    assert [line for line in said if line in _SAID] == _SAID


def test_values_that_fit_no_decision_are_refused():
    train = trainable(Rates())
    with pytest.raises(UserError, match='learning_rate must be'):
        train({'task.learner.learning_rate': 7.0})
    with pytest.raises(UserError, match='momentum'):
        train({'task.learner.learning_rate': 0.01, 'task.learner.momentum': 0.5})
