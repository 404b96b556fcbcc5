"""Tests of google-vizier, and a stock client, against our server: each in processes of its own."""

import json
import os
import subprocess
import sys

import pytest

from tests.paxtune.test_serve import ended, served
from tests.servers.processes import ROOT

# With google-vizier alone: -I ignores PYTHONPATH, and the working directory is elsewhere.
CLIENT = """
import importlib.util, json, sys
from vizier.service import clients, pyvizier as vz
assert not any('paxtune' in name for name in sys.modules)
clients.environment_variables.server_endpoint = sys.argv[1]
problem = vz.ProblemStatement()
root = problem.search_space.root
root.add_float_param('rate', 1e-4, 1.0, scale_type=vz.ScaleType.LOG)
root.add_int_param('depth', 1, 8)
root.add_bool_param('tied')
kind = root.add_categorical_param('kind', ['adam', 'sgd'])
kind.select_values(['sgd']).add_float_param('momentum', 0.0, 0.99)
goal = vz.ObjectiveMetricGoal.MINIMIZE
problem.metric_information.append(vz.MetricInformation('loss', goal=goal))
config = vz.StudyConfig.from_problem(problem)
config.algorithm = vz.Algorithm.GAUSSIAN_PROCESS_BANDIT
config.automated_stopping_config = vz.AutomatedStoppingConfig.default_stopping_spec()
study = clients.Study.from_study_config(config, owner='me', study_id='stock')
while len(list(study.trials())) < 20:
    for trial in study.suggest(count=5):
        values = trial.parameters
        assert values['depth'] in range(1, 9) and isinstance(values['tied'], bool)
        assert ('momentum' in values) == (values['kind'] == 'sgd')
        loss = abs(values['rate'] - 0.01) + abs(values['depth'] - 5) + values['tied']
        for step in (1, 2):
            trial.add_measurement(vz.Measurement({'loss': loss / step}, steps=step))
            if trial.check_early_stopping():
                break
        trial.complete()
again = clients.Study.from_resource_name(study.resource_name)
done = list(again.trials(vz.TrialFilter(status=[vz.TrialStatus.COMPLETED])))
(best,) = list(again.optimal_trials())[:1]
print(json.dumps([len(done), best.materialize().final_measurement.metrics['loss'].value]))
"""


@pytest.mark.slow
def test_a_stock_client_without_paxtune_runs_twenty_trials(tmp_path):
    with served(f'--database={tmp_path}/a.db', '--port=0', '--insecure') as (process, where, _):
        done = subprocess.run(
            [sys.executable, '-I', '-c', CLIENT, where],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != 'PYTHONPATH'},
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        assert done.returncode == 0, done.stderr
        count, loss = json.loads(done.stdout.splitlines()[-1])
        assert count == 20 and loss < 2.5
        assert ended(process)[0] == 0


PYGLOVE = """
import sys
import pyglove as pg, vizier.pyglove as vpg
vpg.init('mine', vizier_endpoint=sys.argv[1])
space = pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.oneof([1, 2, 3]))
samples = pg.sample(space, vpg.BuiltinAlgorithm(sys.argv[2]), num_examples=10, name='sampled')
rewards = []
for example, feedback in samples:
    rewards.append(example.x + example.y)
    feedback(rewards[-1])
assert len(rewards) == 10 and len(pg.poll_result('sampled').trials) == 10
print(max(rewards))
"""


@pytest.mark.slow
def test_pyglove_with_the_backend_of_vizier_samples_by_our_algorithms(tmp_path):
    with served(f'--database={tmp_path}/a.db', '--port=0', '--insecure') as (_, where, _):
        done = subprocess.run(
            [sys.executable, '-I', '-c', PYGLOVE, where, 'GP_BANDIT'],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) > 3.0


@pytest.mark.slow
def test_the_tests_of_vizier_pass():
    suites = ['servicer', 'clients', 'vizier_client']
    done = subprocess.run(
        [sys.executable, '-m', 'tests.paxtune.vizier_service.vizier_tests', *suites],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found['broken'] == [] and found['run'] >= 59 and found['skipped'] == 0, done.stderr
