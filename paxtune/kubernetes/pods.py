"""Parts that the pods of the service and of workers share."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from paxtune.kubernetes.deployment import Deployment

Manifest: TypeAlias = dict[str, Any]

PORT = 8470
ACCESS = '/etc/paxtune'
"""Where the token and the certificate are mounted."""

USER = 10001
"""The user of the image (Dockerfile)."""


def labels(deployment: Deployment, component: str) -> dict[str, str]:
    """Labels of the objects of one component."""
    prefix = 'app.kubernetes.io'
    return {
        f'{prefix}/name': 'paxtune',
        f'{prefix}/instance': deployment.name,
        f'{prefix}/component': component,
    }


def endpoint(deployment: Deployment) -> str:
    """The service's address in the namespace."""
    return f'{deployment.name}:{PORT}'


def template(
    deployment: Deployment, component: str, containers: Sequence[Manifest], **spec: Any
) -> Manifest:
    """A pod template without any rights, in the cluster or on its node; `spec` is the rest."""
    return {
        'metadata': {'labels': labels(deployment, component)},
        'spec': {
            'serviceAccountName': deployment.name,
            'automountServiceAccountToken': False,
            # The variables of a Service that is called like a program could configure it.
            'enableServiceLinks': False,
            # Process 1 would ignore a SIGTERM until its handler is there, and reap no orphans.
            'shareProcessNamespace': True,
            'securityContext': {
                'runAsNonRoot': True,
                'runAsUser': USER,
                'runAsGroup': USER,
                'fsGroup': USER,
                'seccompProfile': {'type': 'RuntimeDefault'},
            },
            **_without_empty(spec),
            'containers': list(containers),
        },
    }


def container(
    deployment: Deployment,
    name: str,
    command: Sequence[str],
    mounts: Mapping[str, str],
    *,
    env: Sequence[Manifest] = (),
    **more: Any,
) -> Manifest:
    """A container that may write to its volumes only.

    Args:
        command: its module and flags.
        mounts: directories of volumes, by name.
        env: further variables.
        **more: further fields; empty ones are left out.
    """
    return {
        'name': name,
        'image': deployment.image,
        'command': ['python', '-m', *command],
        # Compiled programs are cached in the home directory.
        'env': [{'name': 'HOME', 'value': '/tmp'}, *env],
        'workingDir': '/tmp',
        'securityContext': {
            'allowPrivilegeEscalation': False,
            'readOnlyRootFilesystem': True,
            'capabilities': {'drop': ['ALL']},
        },
        'volumeMounts': [
            {'name': 'access', 'mountPath': ACCESS, 'readOnly': True},
            {'name': 'tmp', 'mountPath': '/tmp'},
            *({'name': volume, 'mountPath': path} for volume, path in mounts.items()),
        ],
        **_without_empty(more),
    }


def literal(text: str) -> str:
    """Text of a command as it is: Kubernetes replaces $(NAME), and reads $$ as $."""
    return text.replace('$', '$$')


def _without_empty(fields: Manifest) -> Manifest:
    return {name: value for name, value in fields.items() if value}


def volumes(deployment: Deployment, tls_files: Sequence[str]) -> list[Manifest]:
    """The volumes of every pod: the token with files of the TLS Secret, and a directory."""

    def secret(kind: str, files: Sequence[str]) -> Manifest:
        items = [{'key': each, 'path': each} for each in files]
        return {'secret': {'name': f'{deployment.name}-{kind}', 'items': items}}

    sources = [secret('token', ['token']), secret('tls', tls_files)]
    return [
        {'name': 'access', 'projected': {'defaultMode': 0o440, 'sources': sources}},
        {'name': 'tmp', 'emptyDir': {}},
    ]


def probe(deployment: Deployment, *flags: str) -> list[str]:
    """The module and flags that check the health of the service.

    The probes of Kubernetes for gRPC speak no TLS.
    """
    return [
        'paxtune.deploy',
        'probe',
        f'--vizier_endpoint={endpoint(deployment)}',
        f'--tls_ca={ACCESS}/ca.crt',
        *flags,
    ]
