"""The manifests of a deployment as YAML."""

import yaml

from paxtune.kubernetes import coordinator, pods, workers
from paxtune.kubernetes.deployment import Deployment
from paxtune.kubernetes.pods import Manifest


def manifests(deployment: Deployment) -> list[Manifest]:
    """All objects, in the order in which they are applied."""
    account = {
        'apiVersion': 'v1',
        'kind': 'ServiceAccount',
        'metadata': {'name': deployment.name, 'labels': pods.labels(deployment, 'account')},
        'automountServiceAccountToken': False,
    }
    return [account, *coordinator.manifests(deployment), *workers.manifests(deployment)]


def render(deployment: Deployment) -> str:
    """YAML of all objects, below the commands that create their Secrets."""
    head = [
        f'A search of {deployment.exp} on Kubernetes. Its Secrets come first:',
        '',
        *(f'  {command}' for command in secret_commands(deployment)),
    ]
    comment = '\n'.join(f'# {line}'.rstrip() for line in head)
    return f'{comment}\n{yaml.safe_dump_all(manifests(deployment), sort_keys=False, width=100)}'


def secret_commands(deployment: Deployment) -> list[str]:
    """Shell commands that create the Secrets, with a certificate of its own for the service."""
    name = deployment.name
    names = f'subjectAltName=DNS:{name},DNS:localhost'
    curve = '-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365'
    commands = [
        'umask 077',
        'openssl rand -hex 32 > token',
        f'openssl req -x509 {curve} -subj /CN={name} -addext {names} -keyout tls.key -out tls.crt',
        f'kubectl create secret generic {name}-token --from-file=token',
        f'kubectl create secret generic {name}-tls --from-file=tls.crt --from-file=tls.key '
        '--from-file=ca.crt=tls.crt',
    ]
    if deployment.database is not None:
        commands += [
            'printf %s "$PGPASSWORD" > password',
            f'kubectl create secret generic {name}-database --from-file=password',
        ]
    return commands
