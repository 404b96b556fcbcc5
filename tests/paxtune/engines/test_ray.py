"""Trials on a real Ray cluster of three nodes, whose nodes and drivers are killed."""

from collections.abc import Iterator

import pytest

from paxtune import Ray, tune
from paxtune.engines.ray_cluster.worker_group import WorkerGroup
from tests.factories.function_studies import PARALLEL, slow
from tests.factories.ray_searches import ended, finished, nothing_remains, rewards, until
from tests.servers.processes import command, passed
from tools.servers import ray_cluster
from tools.servers.ray_cluster import RayCluster
from trainer.symbolic.errors import UserError

SEARCH = ['-m', 'paxtune.search', '--engine=ray', '--ray_address=auto']
RATES = '--exp=tests.factories.tunables.Rates'

KILL = """
import sys
from pathlib import Path

import ray

ray.init(namespace='paxtune', logging_level='WARNING')
name = Path(sys.argv[1], 'service', 'ray_coordinator').read_text()
ray.kill(ray.get_actor(name), no_restart=False)
"""


@pytest.fixture(scope='module')
def cluster() -> Iterator[RayCluster]:
    with ray_cluster.started() as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_search_survives_two_lost_nodes_and_its_driver(cluster, tmp_path):
    study = [str(tmp_path / 'ray'), '64', '6']
    driver = cluster.python('-m', 'tests.factories.ray_searches', *study)
    until(lambda: len(ended(tmp_path / 'ray')) >= 8)
    cluster.kill_node()
    cluster.add_node()
    until(lambda: len(ended(tmp_path / 'ray')) >= 20)
    driver.kill()
    driver.communicate()
    without = len(ended(tmp_path / 'ray'))
    until(lambda: len(ended(tmp_path / 'ray')) >= without + 8)
    cluster.kill_node()
    cluster.add_node()
    output = finished(cluster.python('-m', 'tests.factories.ray_searches', *study))
    assert 'done: it has all of its 64 trials' in output
    with tune(slow, job_log_dir=tmp_path / 'calm', **PARALLEL | {'num_trials': 64}) as calm:
        assert rewards(ended(tmp_path / 'ray')) == rewards(list(calm.trials))
    nothing_remains(cluster, tmp_path / 'ray')


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_trial_that_a_node_lost_continues_from_its_checkpoint(cluster, tmp_path):
    flags = [RATES, '--num_trials=2', '--set', 'train.num_train_steps=400']
    flags += ['train.checkpoints.every=20', 'train.evaluation.every=100']
    search = [*SEARCH, *flags, f'--job_log_dir={tmp_path / "ray"}', '--workers=2']
    driver = cluster.python(*search, '--trial_resources={"CPU": 2}')
    saved = 'ray/trials/*/checkpoints/[0-9]*'
    until(lambda: len({each.parent for each in tmp_path.glob(saved) if each.name.isdigit()}) == 2)
    cluster.kill_node()
    cluster.add_node()
    assert 'The study is done' in finished(driver)
    # In a process, too: pytest's own compiles without optimizations, which rounds differently.
    passed(command('paxtune.search', *flags, f'--job_log_dir={tmp_path / "calm"}'))
    assert rewards(ended(tmp_path / 'ray')) == rewards(ended(tmp_path / 'calm'))
    events = [each['event'] for trial in ended(tmp_path / 'ray') for each in trial.history]
    assert 'restarted' not in events


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_workers_begin_again_after_their_coordinator_was_killed(cluster, tmp_path):
    driver = cluster.python('-m', 'tests.factories.ray_searches', str(tmp_path), '12', '2')
    until(lambda: len(ended(tmp_path)) >= 3)
    finished(cluster.python('-c', KILL, str(tmp_path)))
    assert 'done: it has all of its 12 trials' in finished(driver)
    assert all(trial.reward is not None for trial in ended(tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_nodes_train_a_trial_together(cluster, tmp_path):
    search = [*SEARCH, RATES, '--num_trials=2', f'--job_log_dir={tmp_path}', '--workers=1']
    output = finished(cluster.python(*search, '--trial_processes=2', '--set', 'mesh.data=2'))
    assert 'The study is done' in output
    assert len(ended(tmp_path)) == 2
    assert all(trial.reward is not None for trial in ended(tmp_path))


def test_several_processes_run_no_function():
    with pytest.raises(UserError, match='a function runs in one process'):
        tune(slow, engine=Ray(processes=2), **PARALLEL)


def test_a_worker_group_is_read_as_it_was_written():
    group = WorkerGroup(2, 1, {'GPU': 1.0}, 'PACK', '/runs/a', ('a', 'b'), ('--c',), None, 3)
    assert WorkerGroup.from_json(group.to_json()) == group
