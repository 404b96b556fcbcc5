"""Manifests of a search: golden files, the schemas of the API, and bad input."""

import dataclasses
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kubernetes_validate.utils import validate

from paxtune import deploy
from paxtune.kubernetes import pods
from paxtune.kubernetes.text import manifests, render
from tests.documents import ROOT
from tests.paxtune.kubernetes.cases import CASES, GOLDEN
from trainer.symbolic.errors import UserError

VERSION = '1.37'

FLAGS = [
    'kubernetes',
    '--exp=lm.C4Tunable',
    '--image=registry.example/paxtune:1',
    '--workers=16',
    '--name=c4',
    '--job_log_dir=pvc://runs/c4',
]


def templates(value: object) -> Iterator[dict[str, Any]]:
    """Finds the pod templates in an object."""
    if isinstance(value, dict):
        if 'containers' in value:
            yield value
        for each in value.values():
            yield from templates(each)
    elif isinstance(value, list):
        for each in value:
            yield from templates(each)


@pytest.mark.parametrize('case', CASES)
def test_manifests_are_those_of_the_golden_file(case: str) -> None:
    assert render(CASES[case]) == (GOLDEN / f'{case}.yaml').read_text()


def test_the_command_prints_the_golden_file(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ['--resources', 'cpu=4', 'memory=16Gi', 'nvidia.com/gpu=1']
    search = ['--', '--num_trials=256', '--set', 'train.num_train_steps=100']
    assert deploy.main([*FLAGS, *flags, *search]) == 0
    assert capsys.readouterr().out == (GOLDEN / 'volume.yaml').read_text()


@pytest.mark.parametrize('case', CASES)
@pytest.mark.fast(1)
def test_manifests_have_only_fields_of_the_api(case: str) -> None:
    for manifest in yaml.safe_load_all(render(CASES[case])):
        for each in jobs_of(manifest) if manifest['kind'] == 'JobSet' else [manifest]:
            validate(each, VERSION, strict=True)


def jobs_of(job_set: dict[str, Any]) -> list[dict[str, Any]]:
    """Makes the Jobs of a JobSet, whose own fields no schema of the API has.

    The fields are those of the reference of jobset.x-k8s.io/v1alpha2.
    """
    spec = job_set['spec']
    assert {*job_set} == {'apiVersion', 'kind', 'metadata', 'spec'}
    assert {*spec} == {'network', 'failurePolicy', 'replicatedJobs'}
    assert {*spec['network']} <= {'enableDNSHostnames', 'subdomain', 'publishNotReadyAddresses'}
    assert {*spec['failurePolicy']} <= {'maxRestarts', 'restartStrategy', 'rules'}
    for rule in spec['failurePolicy']['rules']:
        assert {*rule} <= {'name', 'action', 'onJobFailureReasons', 'targetReplicatedJobs'}
    found = []
    for job in spec['replicatedJobs']:
        assert {*job} == {'name', 'replicas', 'template'}
        name = f'{job_set["metadata"]["name"]}-{job["name"]}-0'
        metadata = {**job['template'].get('metadata', {}), 'name': name}
        kind = {'apiVersion': 'batch/v1', 'kind': 'Job'}
        found.append({**kind, 'metadata': metadata, **job['template']})
    return found


@pytest.mark.parametrize('case', CASES)
def test_selectors_find_the_pods_and_names_exist(case: str) -> None:
    by_kind: dict[str, Any] = {each['kind']: each for each in manifests(CASES[case])}
    workload = by_kind.get('StatefulSet') or by_kind['Deployment']
    labels = workload['spec']['template']['metadata']['labels']
    assert by_kind['Service']['spec']['selector'] == labels
    assert by_kind['PodDisruptionBudget']['spec']['selector']['matchLabels'] == labels
    assert workload['spec']['selector']['matchLabels'] == labels
    port = by_kind['Service']['spec']['ports'][0]
    container = workload['spec']['template']['spec']['containers'][0]
    assert port['targetPort'] == container['ports'][0]['name']
    assert pods.endpoint(CASES[case]) == f'{by_kind["Service"]["metadata"]["name"]}:{port["port"]}'
    for pod in templates(manifests(CASES[case])):
        assert pod['serviceAccountName'] == by_kind['ServiceAccount']['metadata']['name']


@pytest.mark.parametrize('case', CASES)
def test_pods_have_no_rights_and_mount_what_they_name(case: str) -> None:
    found = [*templates(manifests(CASES[case]))]
    assert len(found) >= 2
    for pod in found:
        assert not pod['automountServiceAccountToken']
        assert pod['securityContext']['runAsNonRoot']
        volumes = {each['name'] for each in pod['volumes']}
        volumes |= {'data'} if 'paxtune.serve' in str(pod) else set()
        for container in [*pod.get('initContainers', []), *pod['containers']]:
            assert {each['name'] for each in container['volumeMounts']} <= volumes
            context = container['securityContext']
            assert context['readOnlyRootFilesystem'] and not context['allowPrivilegeEscalation']
            assert context['capabilities'] == {'drop': ['ALL']}


def test_workers_never_see_the_key_of_the_service() -> None:
    for deployment in CASES.values():
        for pod in templates(manifests(deployment)):
            assert ('tls.key' in str(pod['volumes'])) == ('paxtune.serve' in str(pod['containers']))


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--name=C4'], r'--name=C4: expected at most 40 lower-case letters'),
        ([f'--name={"a" * 41}'], r'--name=a+: expected at most 40'),
        (['--image='], '--image=: expected an image'),
        (['--exp=x\nkind: Pod'], r"--exp='x\\nkind: Pod': expected a name such as"),
        (['--job_log_dir=runs'], '--job_log_dir=runs: expected a directory that all nodes see'),
        (['--database=runs/studies.db'], '--database: expected postgresql://USER@HOST/NAME'),
        (['--database=postgresql://me:secret@db/x'], 'URL without its password'),
        (['--resources', 'cpu:4'], '--resources cpu:4: expected a resource and its quantity'),
        (['--tpu_topology=2x4'], '--tpu_accelerator and --tpu_topology belong together'),
        (['--tpu_accelerator=tpu-v6e-slice', '--tpu_topology=8'], '--tpu_topology=8: expected'),
        (
            ['--tpu_accelerator=x', '--tpu_topology=2x2', '--hosts_per_trial=3'],
            '4 chips cannot be divided by --hosts_per_trial=3',
        ),
        (['--', '--workers=2'], '-- --workers: the manifests set it themselves'),
        (['--', '--exp=lm.Other'], '-- --exp=lm.Other: give --exp once'),
    ],
)
def test_bad_input_is_one_message(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        deploy.main([*FLAGS, *flags])
    assert 'secret' not in str(caught.value)
    assert not capsys.readouterr().out


def test_unknown_flags_of_the_search_are_refused() -> None:
    with pytest.raises(UserError, match=r'--num_trails=2. Did you mean --num_trials'):
        deploy.main([*FLAGS, '--', '--num_trails=2'])


def test_a_dollar_sign_reaches_the_containers() -> None:
    deployment = dataclasses.replace(
        CASES['volume'],
        job_log_dir='gs://b/$(B)',
        database='postgresql://me@db/$(B)',
        search_flags=('--set', 'a=$(B)'),
    )
    serving, worker = (each['containers'][0] for each in templates(manifests(deployment)))
    assert '--database=postgresql://me@db/$$(B)' in serving['command']
    assert worker['command'][-1] == 'a=$$(B)'
    assert '--job_log_dir=gs://b/$$(B)' in worker['command']


def test_the_hosts_of_a_trial_share_a_tpu_slice_with_no_other_trial() -> None:
    topology = {'alpha.jobset.sigs.k8s.io/exclusive-topology': 'cloud.google.com/gke-nodepool'}
    on_tpu = CASES['several_hosts']
    for tpu, expected in ((on_tpu.tpu, topology), (None, {})):
        sets = manifests(dataclasses.replace(on_tpu, tpu=tpu))
        found = [each['metadata'] for each in sets if each['kind'] == 'JobSet']
        assert [each.get('annotations', {}) for each in found] == [expected] * 2


def test_the_image_is_built_from_the_wheel_for_the_user_of_the_manifests() -> None:
    lines = (ROOT / 'Dockerfile').read_text().splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and line[0].isupper()]
    users = [text for step, text in steps if step == 'USER']
    assert users == [str(pods.USER)]
    extras = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project'][
        'optional-dependencies'
    ]
    given = dict(text.split('=', 1) for step, text in steps if step == 'ARG')
    assert {*given['EXTRAS'].split(',')} <= {*extras}
    assert any('pip wheel' in text for step, text in steps if step == 'RUN')
    kept = [each[1:] for each in (ROOT / '.dockerignore').read_text().split() if each[0] == '!']
    assert {'constraints.txt', 'pyproject.toml', 'README.md', 'LICENSE'} < {*kept}
    assert all((ROOT / each).exists() for each in kept)
