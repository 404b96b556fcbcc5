"""Each container of the manifests runs as a local process, and the study completes."""

import contextlib
import dataclasses
import json
import signal
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paxtune.kubernetes.deployment import Deployment
from paxtune.kubernetes.text import manifests, render
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.study.record import Status
from tests.paxtune.kubernetes.nodes import Cluster, finished, free_port
from tests.paxtune.kubernetes.test_manifests import templates
from tests.paxtune.service.conftest import until

pytestmark = pytest.mark.slow

EXP = 'tests.factories.faulty_experiments.Slow'

SLOW = Deployment(
    exp=EXP,
    image='paxtune:1',
    name='slow',
    job_log_dir='pvc://runs/slow',
    workers=2,
    search_flags=('--num_trials=4',),
)


@contextlib.contextmanager
def cluster_of(deployment: Deployment, root: Path, **hosts: str) -> Iterator[Cluster]:
    cluster = Cluster(root, deployment.name, hosts)
    cluster.create_secrets(render(deployment))
    try:
        yield cluster
    finally:
        cluster.stop()


def pods_of(deployment: Deployment) -> list[dict[str, Any]]:
    return [*templates(manifests(deployment))]


def test_a_study_completes_though_each_pod_is_lost_once(tmp_path: Path) -> None:
    coordinator, worker = pods_of(SLOW)
    (main,), (waiting,), (working,) = (
        coordinator['containers'],
        worker['initContainers'],
        worker['containers'],
    )
    with cluster_of(SLOW, tmp_path) as cluster, contextlib.ExitStack() as stack:
        waits = cluster.start(worker, waiting)
        serving = cluster.start(coordinator, main)
        finished(waits)
        assert [cluster.probe(coordinator, f'{kind}Probe') for kind in PROBES] == [0, 0, 0]
        workers = [cluster.start(worker, working, JOB_COMPLETION_INDEX=i) for i in '01']
        database = Database(tmp_path / 'data/studies.db', read_only=True)
        stack.callback(database.close)
        kept = LocalStore(database, EXP)
        until(lambda: kept.study() is not None and measured(kept), 300)
        # An evicted pod saves its trial, and runs again.
        workers[0].send_signal(signal.SIGTERM)
        finished(workers[0], 143)
        workers[0] = cluster.start(worker, working, JOB_COMPLETION_INDEX='0')
        serving.kill()
        serving.communicate()
        assert cluster.probe(coordinator, 'readinessProbe') == 75
        serving = cluster.start(coordinator, main)
        for each in workers:
            finished(each)
        assert [each.status for each in kept.trials()] == [Status.COMPLETED] * 4
        serving.send_signal(signal.SIGTERM)
        finished(serving)


PROBES = ('startup', 'liveness', 'readiness')


def measured(kept: LocalStore) -> bool:
    return any(trial.measurements for trial in kept.trials())


def test_the_coordinator_keeps_its_studies_in_postgresql(
    tmp_path: Path, postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = urllib.parse.urlsplit(postgres.emptied_database())
    monkeypatch.setenv('PGPASSWORD', str(url.password))
    where = f'postgresql://{url.username}@{url.hostname}:{url.port}{url.path}'
    deployment = dataclasses.replace(
        SLOW, database=where, workers=1, search_flags=['--num_trials=1']
    )
    coordinator, worker = pods_of(deployment)
    with cluster_of(deployment, tmp_path) as cluster:
        monkeypatch.delenv('PGPASSWORD')
        serving = cluster.start(coordinator, coordinator['containers'][0])
        finished(cluster.start(worker, worker['initContainers'][0]))
        assert cluster.probe(coordinator, 'readinessProbe') == 0
        finished(cluster.start(worker, worker['containers'][0]))
        serving.send_signal(signal.SIGTERM)
        finished(serving)
    monkeypatch.setenv('PGPASSWORD', str(url.password))
    with contextlib.closing(Database(where)) as database:
        trials = LocalStore(database, EXP).trials()
        assert [each.status for each in trials] == [Status.COMPLETED]


def test_the_pods_of_a_trial_on_several_hosts_train_together(tmp_path: Path) -> None:
    flags = ['--num_trials=1', '--set', 'mesh.data=-1']
    deployment = dataclasses.replace(SLOW, workers=1, hosts_per_trial=2, search_flags=flags)
    coordinator, worker = pods_of(deployment)
    first = {'slow-worker-0-host-0-0.slow-worker-0:9000': f'localhost:{free_port()}'}
    with cluster_of(deployment, tmp_path, **first) as cluster:
        serving = cluster.start(coordinator, coordinator['containers'][0])
        (waiting,), (working,) = worker['initContainers'], worker['containers']
        finished(cluster.start(worker, waiting))
        hosts = [cluster.start(worker, working, JOB_COMPLETION_INDEX=i) for i in '01']
        for host in hosts:
            finished(host)
        serving.send_signal(signal.SIGTERM)
        finished(serving)
    with contextlib.closing(Database(tmp_path / 'data/studies.db', read_only=True)) as database:
        assert [each.status for each in LocalStore(database, EXP).trials()] == [Status.COMPLETED]
    (record,) = (json.loads(each.read_text()) for each in tmp_path.rglob('trial.json'))
    assert len(record['machine']['devices']) == 2


def test_bad_input_ends_the_job_and_a_missing_service_does_not(tmp_path: Path) -> None:
    (job,) = (each for each in manifests(SLOW) if each['kind'] == 'Job')
    by_action: dict[str, list[int]] = {}
    for rule in job['spec']['podFailurePolicy']['rules']:
        by_action.setdefault(rule['action'], []).extend(
            rule.get('onExitCodes', {}).get('values', ())
        )
    _, worker = pods_of(SLOW)
    (working,) = worker['containers']
    with cluster_of(SLOW, tmp_path) as cluster:
        wrong = {**working, 'command': [*working['command'], '--set', 'x=1']}
        code = cluster.start(worker, wrong).wait(300)
        assert code in by_action['FailJob']
        code = cluster.start(worker, working).wait(300)
        assert code in by_action['Ignore']
