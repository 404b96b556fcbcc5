"""Manifests of workers: an indexed Job, or a JobSet for each worker of several hosts."""

from paxtune.kubernetes import pods
from paxtune.kubernetes.deployment import Deployment, chips
from paxtune.kubernetes.pods import Manifest

_COMPONENT = 'worker'
_RUNS = '/runs'
_COORDINATOR_PORT = 9000

# Seconds in which a worker saves a checkpoint after SIGTERM.
_GRACE_SECONDS = 300

# Seconds in which the service gets its volume, its node and its image.
_WAIT_SECONDS = 3600

_MAX_FAILURES = 10
_MAX_RESTARTS = 100

_BAD_INPUT = {'action': 'FailJob', 'onExitCodes': {'operator': 'In', 'values': [2]}}
"""Bad input stays bad: the Job fails at once."""

_PREEMPTED = {
    'action': 'Ignore',
    'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}],
}
"""An evicted pod is replaced, however often."""

_RUN_AGAIN = {'action': 'Ignore', 'onExitCodes': {'operator': 'In', 'values': [75, 130, 143]}}
"""So is one that has no service (75), or has saved its trial after a signal."""


def manifests(deployment: Deployment) -> list[Manifest]:
    """The Jobs of all workers."""
    if deployment.hosts_per_trial == 1:
        return [_job(deployment)]
    return [_job_set(deployment, index) for index in range(deployment.workers)]


def _job(deployment: Deployment) -> Manifest:
    """A pod for each worker, which ends when the study is done."""
    return {
        'apiVersion': 'batch/v1',
        'kind': 'Job',
        'metadata': _metadata(deployment, f'{deployment.name}-{_COMPONENT}'),
        'spec': {
            'completionMode': 'Indexed',
            'completions': deployment.workers,
            'parallelism': deployment.workers,
            # A node that breaks its pods ends one worker, not all of them.
            'backoffLimitPerIndex': _MAX_FAILURES,
            'podFailurePolicy': {'rules': [_BAD_INPUT, _PREEMPTED, _RUN_AGAIN]},
            'template': _template(deployment, []),
        },
    }


def _job_set(deployment: Deployment, index: int) -> Manifest:
    """A pod for each host of one worker. They start again together, without the other workers."""
    name, hosts = f'{deployment.name}-{_COMPONENT}-{index}', deployment.hosts_per_trial
    flags = [
        f'--coordinator={name}-host-0-0.{name}:{_COORDINATOR_PORT}',
        f'--num_processes={hosts}',
        '--process_id=$(JOB_COMPLETION_INDEX)',
    ]
    job = {
        'completionMode': 'Indexed',
        'completions': hosts,
        'parallelism': hosts,
        'backoffLimit': 0,
        'podFailurePolicy': {'rules': [_BAD_INPUT]},
        'template': _template(deployment, flags),
    }
    bad_input = {
        'name': 'badInput',
        'action': 'FailJobSet',
        'onJobFailureReasons': ['PodFailurePolicy'],
    }
    return {
        'apiVersion': 'jobset.x-k8s.io/v1alpha2',
        'kind': 'JobSet',
        'metadata': {**_metadata(deployment, name), **_on_one_slice(deployment)},
        'spec': {
            'network': {'enableDNSHostnames': True, 'publishNotReadyAddresses': True},
            'failurePolicy': {'maxRestarts': _MAX_RESTARTS, 'rules': [bad_input]},
            'replicatedJobs': [{'name': 'host', 'replicas': 1, 'template': {'spec': job}}],
        },
    }


def _template(deployment: Deployment, process_flags: list[str]) -> Manifest:
    limits = _limits(deployment)
    # The default of containers is 64 MiB, too little for NCCL and for batches between processes.
    mounts, shm = {'shm': '/dev/shm'}, {'name': 'shm', 'emptyDir': {'medium': 'Memory'}}
    volumes = [*pods.volumes(deployment, ['ca.crt']), shm]
    if deployment.claim is not None:
        mounts['runs'] = _RUNS
        claim = {'claimName': deployment.claim[0]}
        volumes.append({'name': 'runs', 'persistentVolumeClaim': claim})
    wait = pods.probe(deployment, f'--wait_seconds={_WAIT_SECONDS}')
    search = pods.container(
        deployment,
        _COMPONENT,
        ['paxtune.search', *_flags(deployment, process_flags)],
        mounts,
        resources={'requests': limits, 'limits': {**limits}} if limits else {},
    )
    return pods.template(
        deployment,
        _COMPONENT,
        [search],
        initContainers=[pods.container(deployment, 'service', wait, {})],
        restartPolicy='Never',
        terminationGracePeriodSeconds=_GRACE_SECONDS,
        nodeSelector=_tpu_nodes(*deployment.tpu) if deployment.tpu else {},
        volumes=volumes,
    )


def _flags(deployment: Deployment, process_flags: list[str]) -> list[str]:
    claim, job_log_dir = deployment.claim, deployment.job_log_dir
    if claim is not None:
        job_log_dir = f'{_RUNS}/{claim[1] or deployment.name}'
    return [
        f'--exp={deployment.exp}',
        f'--vizier_endpoint={pods.endpoint(deployment)}',
        f'--tls_ca={pods.ACCESS}/ca.crt',
        f'--token_file={pods.ACCESS}/token',
        f'--job_log_dir={pods.literal(job_log_dir)}',
        *(process_flags or ['--workers=1']),
        *map(pods.literal, deployment.search_flags),
    ]


def _limits(deployment: Deployment) -> dict[str, str]:
    """Resources of a pod. A pod on TPUs gets all chips of its host."""
    tpu: dict[str, str] = {}
    if deployment.tpu is not None:
        of_host = chips(deployment.tpu[1]) // deployment.hosts_per_trial
        tpu = {'google.com/tpu': str(of_host)}
    return {**tpu, **deployment.resources}


def _tpu_nodes(accelerator: str, topology: str) -> dict[str, str]:
    prefix = 'cloud.google.com/gke-tpu'
    return {f'{prefix}-accelerator': accelerator, f'{prefix}-topology': topology}


def _on_one_slice(deployment: Deployment) -> Manifest:
    """Keeps the pods of a worker on the nodes of one TPU slice, and other workers away."""
    key = 'alpha.jobset.sigs.k8s.io/exclusive-topology'
    return {'annotations': {key: 'cloud.google.com/gke-nodepool'}} if deployment.tpu else {}


def _metadata(deployment: Deployment, name: str) -> Manifest:
    return {'name': name, 'labels': pods.labels(deployment, _COMPONENT)}
