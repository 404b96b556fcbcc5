"""Manifests of `examples/kubernetes`: the schemas of the API, and their containers as processes."""

import contextlib
import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate.utils import validate

from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.study.record import Status
from tests.documents import ROOT
from tests.paxtune.service.conftest import until
from tests.servers.processes import environment
from tools.servers.ports import unused_port

FILES = {path.stem: path for path in sorted((ROOT / 'examples/kubernetes').glob('*.yaml'))}
VERSION = '1.37'
PODS = ('StatefulSet', 'Job')
EXP = 'tests.factories.faulty_experiments.Slow'

Manifest = dict[str, Any]
Process = subprocess.Popen[str]
Start = Callable[..., Process]


def manifests(name: str) -> dict[str, Manifest]:
    """The objects of a file by kind."""
    return {each['kind']: each for each in yaml.safe_load_all(FILES[name].read_text())}


def job_of(job_set: Manifest) -> Manifest:
    """The Job that the JobSet controller creates."""
    (replicated,) = job_set['spec']['replicatedJobs']
    metadata = {'name': f'{job_set["metadata"]["name"]}-{replicated["name"]}-0'}
    return {
        'apiVersion': 'batch/v1',
        'kind': 'Job',
        'metadata': metadata,
        **replicated['template'],
    }


def pod_of(name: str) -> Manifest:
    """The only pod template of a file."""
    found = manifests(name)
    if 'JobSet' in found:
        found = {'Job': job_of(found['JobSet'])}
    (pod,) = (each['spec']['template'] for each in found.values() if each['kind'] in PODS)
    assert isinstance(pod, dict)
    return pod


def container_of(name: str) -> Manifest:
    """The only container of a file."""
    (container,) = pod_of(name)['spec']['containers']
    assert isinstance(container, dict)
    return container


@pytest.mark.parametrize('name', FILES)
def test_manifests_have_only_fields_of_the_api(name: str) -> None:
    for kind, manifest in manifests(name).items():
        validate(job_of(manifest) if kind == 'JobSet' else manifest, VERSION, strict=True)


def test_selectors_find_the_pod_of_the_service() -> None:
    found = manifests('service')
    labels = pod_of('service')['metadata']['labels']
    assert found['Service']['spec']['selector'] == labels
    assert found['StatefulSet']['spec']['selector']['matchLabels'] == labels
    assert found['PodDisruptionBudget']['spec']['selector']['matchLabels'] == labels
    (port,) = found['Service']['spec']['ports']
    assert port['targetPort'] == container_of('service')['ports'][0]['name']
    endpoint = f'--vizier_endpoint={found["Service"]["metadata"]["name"]}:{port["port"]}'
    for name in {*FILES} - {'service'}:
        assert endpoint in container_of(name)['command']


@pytest.mark.parametrize('name', FILES)
def test_pods_have_no_rights_and_only_the_service_has_its_key(name: str) -> None:
    spec, container = pod_of(name)['spec'], container_of(name)
    assert spec['serviceAccountName'] == manifests('service')['ServiceAccount']['metadata']['name']
    assert not spec['automountServiceAccountToken']
    assert spec['securityContext']['runAsNonRoot']
    assert f'USER {spec["securityContext"]["runAsUser"]}\n' in (ROOT / 'Dockerfile').read_text()
    assert container['securityContext']['readOnlyRootFilesystem']
    assert container['securityContext']['capabilities'] == {'drop': ['ALL']}
    volumes = {each['name'] for each in spec['volumes']} | {'data'}
    assert {each['name'] for each in container['volumeMounts']} <= volumes
    keys = {item['key'] for item in tls_items(spec)}
    assert ('tls.key' in keys or not keys) == (name == 'service')


def tls_items(spec: Manifest) -> list[Manifest]:
    """The keys of the TLS Secret that a pod sees; without any it sees all."""
    (access,) = (each['projected'] for each in spec['volumes'] if each['name'] == 'access')
    (tls,) = (
        each['secret'] for each in access['sources'] if each['secret']['name'].endswith('-tls')
    )
    found = tls.get('items', [])
    assert isinstance(found, list)
    return found


def test_the_image_has_extras_and_files_that_exist() -> None:
    lines = (ROOT / 'Dockerfile').read_text()
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    (extras,) = re.findall(r'^ARG EXTRAS=(.*)$', lines, re.MULTILINE)
    assert {*extras.split(',')} <= {*project['optional-dependencies']}
    kept = [each[1:] for each in (ROOT / '.dockerignore').read_text().split() if each[0] == '!']
    assert {'constraints.txt', 'pyproject.toml', 'README.md', 'LICENSE'} < {*kept}
    assert all((ROOT / each).exists() for each in kept)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the container of a file as a process, which has the volumes of a pod as folders."""
    for folder in ('data', 'runs', 'tmp', 'access'):
        (tmp_path / folder).mkdir()
    create_secrets(tmp_path / 'access')
    port = unused_port()
    local = {
        'c4-worker-0-host-0-0.c4-worker-0:9000': f'localhost:{unused_port()}',
        'c4:8470': f'localhost:{port}',
        '--port=8470': f'--port={port}',
        '0.0.0.0': '127.0.0.1',
        'lm.C4Tunable': EXP,
        '--num_trials=256': '--num_trials=4',
        'gs://my-bucket': str(tmp_path / 'runs'),
        '/etc/paxtune': str(tmp_path / 'access'),
        **{path: str(tmp_path / path[1:]) for path in ('/data', '/runs', '/tmp')},
    }
    pattern = re.compile('|'.join(map(re.escape, local)))

    def start(name: str, *flags: str, index: int = 0) -> Process:
        container = container_of(name)
        texts = [*container['command'][1:], *(each['value'] for each in container['env'])]
        *words, home = (
            pattern.sub(lambda found: local[found[0]], text).replace(
                '$(JOB_COMPLETION_INDEX)', str(index)
            )
            for text in texts
        )
        # Every pod has the address of the API, by which JAX detects Kubernetes.
        pod = {'HOME': home, 'KUBERNETES_SERVICE_HOST': '10.0.0.1'}
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, *words, *flags],
                cwd=tmp_path / 'tmp',
                env={**environment(optimizes=False), **pod, 'JOB_COMPLETION_INDEX': str(index)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        stack.callback(process.kill)
        return process

    with contextlib.ExitStack() as stack:
        yield start


def create_secrets(folder: Path) -> None:
    """Runs the commands at the top of `service.yaml`, and writes the Secrets' keys as files."""
    for line in re.findall(r'^#   (.*)$', FILES['service'].read_text(), re.MULTILINE):
        if line.startswith(('umask', 'openssl')):
            subprocess.run(line, shell=True, cwd=folder, check=True, capture_output=True)
        for word in shlex.split(line) if line.startswith('kubectl create secret') else ():
            if word.startswith('--from-file='):
                key, _, file = word.removeprefix('--from-file=').rpartition('=')
                (folder / (key or file)).write_bytes((folder / file).read_bytes())


def finished(process: Process, code: int = 0) -> None:
    """Waits for a container, which must end with the code."""
    out, _ = process.communicate(timeout=300)
    assert process.returncode == code, out


@contextlib.contextmanager
def study_in(root: Path) -> Iterator[LocalStore]:
    """Opens the service's database."""
    with contextlib.closing(Database(root / 'data/studies.db', read_only=True)) as database:
        yield LocalStore(database, EXP)


@pytest.mark.slow
def test_a_study_completes_though_each_pod_is_lost_once(tmp_path: Path, start: Start) -> None:
    serving = start('service')
    until((tmp_path / 'data/studies.db').exists, 300)
    workers = [start('workers', index=i) for i in range(2)]
    with study_in(tmp_path) as study:
        until(
            lambda: study.study() is not None and any(t.measurements for t in study.trials()), 300
        )
        # An evicted pod saves its trial, and runs again.
        workers[0].send_signal(signal.SIGTERM)
        finished(workers[0], 143)
        workers[0] = start('workers')
        serving.kill()
        serving.communicate()
        serving = start('service')
        for each in workers:
            finished(each)
        assert [each.status for each in study.trials()] == [Status.COMPLETED] * 4
    serving.send_signal(signal.SIGTERM)
    finished(serving)


@pytest.mark.slow
def test_the_pods_of_a_trial_on_several_hosts_train_together(tmp_path: Path, start: Start) -> None:
    start('service')
    until((tmp_path / 'data/studies.db').exists, 300)
    flags = ['--num_processes=2', '--num_trials=1', '--set', 'mesh.data=-1']
    for host in [start('several_hosts', *flags, index=i) for i in range(2)]:
        finished(host)
    with study_in(tmp_path) as study:
        assert [each.status for each in study.trials()] == [Status.COMPLETED]
    (record,) = (json.loads(each.read_text()) for each in tmp_path.rglob('trial.json'))
    assert len(record['machine']['devices']) == 2


@pytest.mark.slow
def test_bad_input_ends_the_job_and_a_missing_service_does_not(start: Start) -> None:
    codes: dict[str, list[int]] = {}
    for rule in manifests('workers')['Job']['spec']['podFailurePolicy']['rules']:
        codes.setdefault(rule['action'], []).extend(rule.get('onExitCodes', {}).get('values', ()))
    assert start('workers', '--set', 'x=1').wait(300) in codes['FailJob']
    assert start('workers').wait(300) in codes['Ignore']
