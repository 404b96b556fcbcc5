"""Searches on Ray that bring their code, wait for nodes, or lose the whole cluster."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from paxtune import Ray, tune
from tests.factories.function_studies import PARALLEL, slow
from tests.factories.ray_searches import (
    STUDY,
    ended,
    finished,
    nothing_remains,
    rewards,
    until,
)
from tests.servers.processes import command, passed
from tools.servers import ray_cluster
from tools.servers.ray_cluster import RayCluster
from trainer.symbolic.errors import UserError

EXPERIMENT = """
from tests.factories.tunables import Rates
from trainer.learner import Learner

print('the code is in', __file__, flush=True)


class MyLearner(Learner):
    pass


def Mine():
    made = Rates()
    fields = {name: value for name, value in made.task.learner.sym_items()}
    return made.rebind({'task.learner': MyLearner(**fields)})
"""

FUNCTION = """
import time

from paxtune import Ray, tune
from tests.factories.function_studies import PARALLEL

VERSION = 1


def versioned(x):
    print('version', VERSION, __file__, flush=True)
    for _ in range(4):
        time.sleep(0.25)
        yield {'objective': x, 'version': VERSION}


def main(directory, trials):
    engine = Ray(2, runtime_env={'working_dir': '.'}, lease_seconds=10.0)
    options = PARALLEL | {'num_trials': int(trials), 'job_log_dir': directory}
    with tune(versioned, engine=engine, **options) as study:
        print('done:', study.done_reason)
"""


@pytest.fixture(scope='module')
def cluster() -> Iterator[RayCluster]:
    with ray_cluster.started(1, 2, 'jobs') as running:
        yield running


def submit(cluster: RayCluster, name: str, code: Path, *command: str) -> None:
    """Submits a job with a working directory."""
    ray = str(Path(sys.executable).parent / 'ray')
    flags = [f'--submission-id={name}', f'--working-dir={code}', '--no-wait', '--', *command]
    done = subprocess.run(
        [ray, 'job', 'submit', *flags],
        env={**cluster.environment, 'RAY_API_SERVER_ADDRESS': f'http://{cluster.jobs}'},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, f'{done.stdout}\n{done.stderr}'


def status(cluster: RayCluster, name: str) -> str:
    with urllib.request.urlopen(f'http://{cluster.jobs}/api/jobs/{name}') as reply:
        found: str = json.load(reply)['status']
    return found


def log(name: str) -> str:
    # `session_latest` is a link to one of them.
    files = Path('/tmp/ray').glob(f'session_*/logs/job-driver-{name}.log')
    (file,) = {each.resolve() for each in files}
    return file.read_text()


def kill_driver(directory: Path) -> None:
    """Kills the search command of a directory, and the shell that a job has started it with."""
    for process in psutil.process_iter(['cmdline']):
        line = ' '.join(process.info['cmdline'] or [])
        if 'paxtune.search' in line and str(directory) in line:
            process.kill()


def coordinator(directory: Path) -> str:
    return (directory / 'service' / 'ray_coordinator').read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_job_brings_its_code_and_a_second_one_joins_the_search_of_a_killed_one(cluster, tmp_path):
    code, study = tmp_path / 'code', tmp_path / 'ray'
    code.mkdir()
    (code / 'my_experiment.py').write_text(EXPERIMENT)
    flags = ['--exp=my_experiment.Mine', '--num_trials=2', '--set', 'train.num_train_steps=200']
    flags += ['train.checkpoints.every=20', 'train.evaluation.every=50']
    search = [sys.executable, '-m', 'paxtune.search', '--engine=ray', '--workers=2', *flags]
    search += [f'--ray_address={cluster.address}', f'--job_log_dir={study}']

    first, second = (f'{name}-{uuid.uuid4().hex}' for name in ('first', 'second'))
    submit(cluster, first, code, *search)
    until(lambda: len(list(study.glob('trials/*/checkpoints/*'))) >= 2)
    kill_driver(study)
    until(lambda: status(cluster, first) == 'FAILED')
    name = coordinator(study)
    submit(cluster, second, code, *search)
    passed(command('paxtune.search', *flags, f'--job_log_dir={tmp_path / "calm"}', cwd=code))
    (code / 'my_experiment.py').unlink()
    until(lambda: status(cluster, second) not in ('PENDING', 'RUNNING'))
    before, after = log(first), log(second)
    assert re.search(r'Member pid=.*the code is in .*working_dir_files', before), before
    assert 'trial 1' in before.lower(), before
    assert 'The study is done' in after, after
    assert coordinator(study) == name
    assert rewards(ended(study)) == rewards(ended(tmp_path / 'calm'))
    nothing_remains(cluster, study)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_workers_end_where_the_code_has_changed_and_others_begin(cluster, tmp_path):
    code, study = tmp_path / 'code', tmp_path / 'ray'
    code.mkdir()
    (code / 'versions.py').write_text(FUNCTION)
    search = ['-c', 'import sys, versions; versions.main(*sys.argv[1:])', str(study)]
    driver = cluster.python(*search, '400', cwd=code)
    until(lambda: len(ended(study)) >= 2)
    driver.kill()
    output, _ = driver.communicate()
    assert re.search(r'Member pid=.*version 1 .*working_dir_files', output), output
    (code / 'versions.py').write_text(FUNCTION.replace('VERSION = 1', 'VERSION = 2'))
    driver = cluster.python(*search, '400', cwd=code)
    until(lambda: ended(study)[-1].metrics['version'] == 2)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=900)
    assert 'The runtime environment has changed' in output
    assert {trial.metrics['version'] for trial in ended(study)} == {1, 2}
    nothing_remains(cluster, study)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_workers_without_room_are_demand_that_the_driver_names(cluster, tmp_path):
    driver = cluster.python('-m', STUDY, str(tmp_path), '2', '2', '4')
    assert driver.stdout is not None
    # The first worker may wait before the second one does.
    said = next(line for line in driver.stdout if '2 of 2 workers wait for room' in line)
    assert "each needs 1 × {'CPU': 4}" in said
    ray = str(Path(sys.executable).parent / 'ray')
    ray_status = [ray, 'status', f'--address={cluster.address}']

    def demand() -> str:
        done = subprocess.run(
            ray_status, env=cluster.environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    until(lambda: "{'CPU': 4.0} * 1 (STRICT_SPREAD): 2+ pending placement groups" in demand())
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=900)
    assert driver.returncode != 0
    until(lambda: 'pending placement groups' not in demand())
    nothing_remains(cluster, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_coordinator_that_no_driver_joins_ends(cluster, tmp_path):
    driver = cluster.python('-m', STUDY, str(tmp_path), '2', '1')
    until((tmp_path / 'service' / 'endpoint').exists)
    driver.kill()
    driver.communicate()
    nothing_remains(cluster, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_autoscaler_of_ray_adds_nodes_for_workers(tmp_path):
    with ray_cluster.started(1, 1, 'autoscaled') as small:
        output = finished(small.python('-m', STUDY, str(tmp_path), '4', '2', '2'))
    assert 'done: it has all of its 4 trials' in output


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_search_continues_on_another_cluster_when_the_first_is_gone(tmp_path):
    study = [str(tmp_path), '12', '2']
    with ray_cluster.started(1, 2) as first:
        driver = first.python('-m', STUDY, *study)
        until(lambda: len(ended(tmp_path)) >= 3)
    driver.communicate(timeout=900)
    assert driver.returncode != 0
    assert len(ended(tmp_path)) < 12
    with ray_cluster.started(1, 2) as second:
        assert 'done: it has all of its 12 trials' in finished(second.python('-m', STUDY, *study))
    with tune(slow, **PARALLEL | {'num_trials': 12}) as calm:
        assert rewards(ended(tmp_path)) == rewards(list(calm.trials))


def test_a_study_in_the_copy_of_a_working_directory_is_refused(tmp_path):
    copy = tmp_path / 'runtime_resources' / 'working_dir_files' / '_ray_pkg_1'
    with pytest.raises(UserError, match='Give an absolute path'):
        tune(slow, engine=Ray(), job_log_dir=copy / 'runs', **PARALLEL)
    assert not copy.exists()


def test_a_ray_client_is_refused():
    with pytest.raises(UserError, match='ray job submit'):
        tune(slow, engine=Ray(address='ray://127.0.0.1:1'), **PARALLEL)
