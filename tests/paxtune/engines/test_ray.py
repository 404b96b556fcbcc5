"""Trials on one real Ray cluster, whose nodes, coordinators and drivers are killed."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from paxtune import Ray, tune
from paxtune.engines.cluster_worker import ClusterWorker
from paxtune.engines.ray_cluster.worker_group import WorkerGroup
from tests.conformance import engine_suite
from tests.conformance.engine_suite import Case, Life
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

KILL = """
import sys
from pathlib import Path

import ray

ray.init(namespace='paxtune', logging_level='WARNING')
name = Path(sys.argv[1], 'service', 'ray_coordinator').read_text()
ray.kill(ray.get_actor(name), no_restart=sys.argv[2] == 'for good')
"""


@pytest.fixture(scope='module')
def cluster() -> Iterator[RayCluster]:
    with ray_cluster.started(3, 2, takes_jobs=True) as running:
        yield running


@pytest.fixture(scope='module')
def life(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Life:
    folder = tmp_path_factory.mktemp('life')
    search = engine_suite.as_command('ray', folder, cluster.environment)
    return engine_suite.run(Case(folder, search, 'kill_job'))


@pytest.mark.slow(reason='a real cluster')
@pytest.mark.timeout(900)
@pytest.mark.parametrize('check', engine_suite.ALL, ids=lambda check: check.__name__)
def test_ray_keeps_the_contract_of_engines(life: Life, check: Callable[[Life], None]) -> None:
    check(life)


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


@pytest.mark.slow(reason='a real cluster')
@pytest.mark.timeout(900)
def test_a_search_survives_a_lost_node_and_a_second_job_joins_that_of_a_killed_one(
    cluster: RayCluster, tmp_path: Path
) -> None:
    code, study = tmp_path / 'code', tmp_path / 'ray'
    code.mkdir()
    (code / 'mine.py').write_text('from tests.factories.tunables import Rates')
    flags = ['--exp=mine.Rates', '--num_trials=3', '--set', 'train.num_train_steps=400']
    flags += ['train.checkpoints.every=20', 'train.evaluation.every=100']
    search = [sys.executable, '-m', 'paxtune.search', '--engine=ray', '--workers=3', *flags]
    search += [f'--ray_address={cluster.address}', '--trial_resources={"CPU": 2}']
    search += [f'--job_log_dir={study}']

    first, second = (f'{name}-{uuid.uuid4().hex}' for name in ('first', 'second'))
    submit(cluster, first, code, *search)
    saved = 'trials/*/checkpoints/[0-9]*'
    # A worker on each node.
    until(lambda: len({each.parent for each in study.glob(saved) if each.name.isdigit()}) == 3)
    kill_driver(study)
    cluster.kill_node()
    cluster.add_node()
    until(lambda: status(cluster, first) == 'FAILED')
    name = coordinator(study)
    submit(cluster, second, code, *search)
    # In a process, too: pytest's own compiles without optimizations, which rounds differently.
    passed(command('paxtune.search', *flags, f'--job_log_dir={tmp_path / "calm"}', cwd=code))
    until(lambda: status(cluster, second) not in ('PENDING', 'RUNNING'))
    before, after = log(first), log(second)
    assert 'trial 1' in before.lower(), before
    assert 'The study is done' in after, after
    assert coordinator(study) == name
    assert rewards(ended(study)) == rewards(ended(tmp_path / 'calm'))
    events = [each['event'] for trial in ended(study) for each in trial.history]
    assert 'resumed' in events and 'restarted' not in events
    nothing_remains(cluster, study)


@pytest.mark.slow(reason='a real cluster')
@pytest.mark.timeout(900)
def test_a_coordinator_begins_again_by_itself_and_by_the_same_command(
    cluster: RayCluster, tmp_path: Path
) -> None:
    search = ['-m', STUDY, str(tmp_path), '12', '2']
    driver = cluster.python(*search)
    until(lambda: len(ended(tmp_path)) >= 2)
    finished(cluster.python('-c', KILL, str(tmp_path), 'for now'))
    until(lambda: len(ended(tmp_path)) >= 6)
    finished(cluster.python('-c', KILL, str(tmp_path), 'for good'))
    output, _ = driver.communicate(timeout=300)
    assert driver.returncode != 0 and 'the coordinator was lost' in output
    assert len(ended(tmp_path)) < 12
    assert 'done: it has all of its 12 trials' in finished(cluster.python(*search))
    with tune(slow, **PARALLEL | {'num_trials': 12}) as calm:
        assert rewards(ended(tmp_path)) == rewards(list(calm.trials))


@pytest.mark.slow(reason='a real cluster')
@pytest.mark.timeout(900)
def test_two_nodes_train_a_trial_together(cluster: RayCluster, tmp_path: Path) -> None:
    search = ['-m', 'paxtune.search', '--engine=ray', '--ray_address=auto', '--workers=1']
    search += ['--exp=tests.factories.tunables.Rates', '--num_trials=1']
    search += [f'--job_log_dir={tmp_path}', '--trial_processes=2', '--set', 'mesh.data=2']
    assert 'The study is done' in finished(cluster.python(*search))
    (trial,) = ended(tmp_path)
    assert trial.reward is not None


@pytest.mark.slow(reason='a real cluster')
@pytest.mark.timeout(900)
def test_workers_end_where_the_code_has_changed_and_others_begin(
    cluster: RayCluster, tmp_path: Path
) -> None:
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


@pytest.mark.slow(reason='a real cluster')
@pytest.mark.timeout(900)
def test_workers_without_room_are_demand_that_the_driver_names(
    cluster: RayCluster, tmp_path: Path
) -> None:
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


@pytest.mark.slow(reason='a real cluster')
@pytest.mark.timeout(900)
def test_a_coordinator_that_no_driver_joins_ends(cluster: RayCluster, tmp_path: Path) -> None:
    driver = cluster.python('-m', STUDY, str(tmp_path), '2', '1')
    until((tmp_path / 'service' / 'endpoint').exists)
    driver.kill()
    driver.communicate()
    nothing_remains(cluster, tmp_path)


def test_several_processes_run_no_function() -> None:
    with pytest.raises(UserError, match='a function runs in one process'):
        tune(slow, engine=Ray(processes=2), **PARALLEL)


def test_a_worker_group_is_read_as_it_was_written() -> None:
    worker = ClusterWorker('/runs/a', ('a', 'b'), ('--c',), None, 3)
    group = WorkerGroup(2, worker, {'GPU': 1.0}, 'PACK')
    assert WorkerGroup.from_json(group.to_json()) == group


def test_a_study_in_the_copy_of_a_working_directory_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / 'runtime_resources' / 'working_dir_files' / '_ray_pkg_1'
    with pytest.raises(UserError, match='Give an absolute path'):
        tune(slow, engine=Ray(), job_log_dir=copy / 'runs', **PARALLEL)
    assert not copy.exists()


def test_a_ray_client_is_refused() -> None:
    with pytest.raises(UserError, match='ray job submit'):
        tune(slow, engine=Ray(address='ray://127.0.0.1:1'), **PARALLEL)
