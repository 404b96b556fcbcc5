"""Manifests of the service that keeps the study."""

from collections.abc import Sequence

from paxtune.kubernetes import pods
from paxtune.kubernetes.deployment import Deployment
from paxtune.kubernetes.pods import Manifest

_COMPONENT = 'coordinator'
_DATA = '/data'

# With trials of weeks, thousands of which have a few KiB each.
_STORAGE = '10Gi'


def manifests(deployment: Deployment) -> list[Manifest]:
    """The service with its volume or database, its address, and its protection from evictions."""
    return [
        _address(deployment),
        _on_volume(deployment) if deployment.database is None else _on_postgres(deployment),
        _disruption_budget(deployment),
    ]


def _address(deployment: Deployment) -> Manifest:
    return {
        'apiVersion': 'v1',
        'kind': 'Service',
        'metadata': _metadata(deployment, deployment.name),
        'spec': {
            'selector': pods.labels(deployment, _COMPONENT),
            'ports': [{'name': 'grpc', 'port': pods.PORT, 'targetPort': 'grpc'}],
        },
    }


def _on_volume(deployment: Deployment) -> Manifest:
    """SQLite: a StatefulSet never runs two pods on one volume."""
    data = {
        'metadata': {'name': 'data'},
        'spec': {
            'accessModes': ['ReadWriteOnce'],
            'resources': {'requests': {'storage': _STORAGE}},
        },
    }
    container = _container(deployment, f'{_DATA}/studies.db', {'data': _DATA})
    spec = {'serviceName': deployment.name, 'volumeClaimTemplates': [data]}
    return _workload(deployment, 'StatefulSet', container, spec)


def _on_postgres(deployment: Deployment) -> Manifest:
    assert deployment.database is not None
    password = {'secretKeyRef': {'name': f'{deployment.name}-database', 'key': 'password'}}
    env = {'name': 'PGPASSWORD', 'valueFrom': password}
    container = _container(deployment, deployment.database, {}, [env])
    # One service at a time uses a database.
    return _workload(deployment, 'Deployment', container, {'strategy': {'type': 'Recreate'}})


def _workload(deployment: Deployment, kind: str, container: Manifest, spec: Manifest) -> Manifest:
    labels = pods.labels(deployment, _COMPONENT)
    return {
        'apiVersion': 'apps/v1',
        'kind': kind,
        'metadata': _metadata(deployment, f'{deployment.name}-{_COMPONENT}'),
        'spec': {
            'replicas': 1,
            'selector': {'matchLabels': labels},
            **spec,
            'template': pods.template(
                deployment,
                _COMPONENT,
                [container],
                # A probe reaches this pod by the name that is in the certificate.
                hostAliases=[{'ip': '127.0.0.1', 'hostnames': [deployment.name]}],
                terminationGracePeriodSeconds=30,
                volumes=pods.volumes(deployment, ['tls.crt', 'tls.key', 'ca.crt']),
            ),
        },
    }


def _container(
    deployment: Deployment, database: str, mounts: dict[str, str], env: Sequence[Manifest] = ()
) -> Manifest:
    flags = {
        'database': pods.literal(database),
        'host': '0.0.0.0',
        'port': pods.PORT,
        'tls_cert': f'{pods.ACCESS}/tls.crt',
        'tls_key': f'{pods.ACCESS}/tls.key',
        'token_file': f'{pods.ACCESS}/token',
    }
    health = ['python', '-m', *pods.probe(deployment)]
    return pods.container(
        deployment,
        _COMPONENT,
        ['paxtune.serve', *(f'--{name}={value}' for name, value in flags.items())],
        mounts,
        env=env,
        ports=[{'name': 'grpc', 'containerPort': pods.PORT}],
        resources={
            'requests': {'cpu': '500m', 'memory': '1Gi'},
            'limits': {'memory': '2Gi'},
        },
        startupProbe=_port_probe(5, 60),
        # A restart helps against no failure of the database, which the health check reports.
        livenessProbe=_port_probe(10, 6),
        readinessProbe={'exec': {'command': health}, 'periodSeconds': 30, 'timeoutSeconds': 25},
    )


def _port_probe(seconds: int, failures: int) -> Manifest:
    return {
        'tcpSocket': {'port': 'grpc'},
        'periodSeconds': seconds,
        'failureThreshold': failures,
    }


def _disruption_budget(deployment: Deployment) -> Manifest:
    return {
        'apiVersion': 'policy/v1',
        'kind': 'PodDisruptionBudget',
        'metadata': _metadata(deployment, f'{deployment.name}-{_COMPONENT}'),
        'spec': {
            'minAvailable': 1,
            'selector': {'matchLabels': pods.labels(deployment, _COMPONENT)},
        },
    }


def _metadata(deployment: Deployment, name: str) -> Manifest:
    return {'name': name, 'labels': pods.labels(deployment, _COMPONENT)}
