"""Settings of a search on Kubernetes."""

import dataclasses
import math
import re
import urllib.parse
from collections.abc import Mapping, Sequence

from trainer.symbolic.errors import UserError

MAX_NAME = 40
"""Names of pods are longer by up to 18 characters, and have at most 63."""

_EXP = re.compile(r'[A-Za-z_][\w.]*')
_NAME = re.compile(r'[a-z]([a-z0-9-]*[a-z0-9])?')
_LABEL = re.compile(r'[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?')
_QUANTITY = re.compile(r'[0-9]+(\.[0-9]+)?(m|k|[MGTP]|[KMGTP]i)?')
_RESOURCE = re.compile(r'([a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9][A-Za-z0-9._-]*')
_TOPOLOGY = re.compile(r'[1-9][0-9]*(x[1-9][0-9]*){1,2}')
_CLAIM = re.compile(r'pvc://([a-z0-9.-]+)/?([\w./-]*)')


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A search on Kubernetes.

    Attributes:
        exp: the experiment, as in --exp.
        image: has paxtune, the experiment and its packages.
        job_log_dir: where trials write: gs://BUCKET/PATH, or pvc://CLAIM/PATH, a claim that all
            nodes can mount.
        name: begins the names of all objects.
        workers: the number of workers.
        hosts_per_trial: pods of a worker.
        database: the URL of PostgreSQL, without its password; None for SQLite on a volume.
        resources: quantities for each pod of a worker, by resource.
        tpu: the accelerator and the topology of GKE's TPU nodes.
        search_flags: further flags of `paxtune.search`.
    """

    exp: str
    image: str
    job_log_dir: str
    name: str
    workers: int
    hosts_per_trial: int = 1
    database: str | None = None
    resources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tpu: tuple[str, str] | None = None
    search_flags: Sequence[str] = ()

    @property
    def claim(self) -> tuple[str, str] | None:
        """The claim of --job_log_dir, and the path in it; None for a bucket."""
        found = _CLAIM.fullmatch(self.job_log_dir)
        return None if found is None else (found[1], found[2])


def name_for(exp: str) -> str:
    """Returns the default name of a deployment.

    Example:
        >>> name_for('lm.StdlibTunable')
        'lm-stdlibtunable'
    """
    return re.sub('[^a-z0-9]+', '-', exp.lower()).strip('-')


def check(deployment: Deployment) -> None:
    """Raises UserError where a setting is invalid, with the flag and what it takes."""
    name, image, database = deployment.name, deployment.image, deployment.database
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise UserError(
            f'--name={name}: expected at most {MAX_NAME} lower-case letters, digits and hyphens, '
            'of which the first is a letter, and the last no hyphen (RFC 1123)'
        )
    if not _EXP.fullmatch(deployment.exp):
        raise UserError(f'--exp={deployment.exp!r}: expected a name such as lm.C4Tunable')
    if not image or re.search(r'\s', image):
        raise UserError(f'--image={image}: expected an image, such as registry.example/paxtune:1')
    if not deployment.job_log_dir.startswith('gs://') and deployment.claim is None:
        raise UserError(
            f'--job_log_dir={deployment.job_log_dir}: expected a directory that all nodes see: '
            'gs://BUCKET/PATH, or pvc://CLAIM/PATH for a PersistentVolumeClaim'
        )
    if database is not None:
        _check_database(database)
    if deployment.tpu is not None:
        _check_tpu(*deployment.tpu, deployment.hosts_per_trial)


def _check_database(database: str) -> None:
    try:
        url = urllib.parse.urlsplit(database)
        is_postgres = url.scheme == 'postgresql' and bool(url.hostname)
    except ValueError:
        is_postgres = False
    if not is_postgres:
        raise UserError('--database: expected postgresql://USER@HOST/NAME; leave it out for SQLite')
    if url.password is not None or 'password' in urllib.parse.parse_qs(url.query):
        raise UserError(
            '--database: give the URL without its password, which a Secret of the cluster holds'
        )


def _check_tpu(accelerator: str, topology: str, hosts: int) -> None:
    if not _LABEL.fullmatch(accelerator):
        raise UserError(f'--tpu_accelerator={accelerator}: expected one such as tpu-v6e-slice')
    if not _TOPOLOGY.fullmatch(topology):
        raise UserError(f'--tpu_topology={topology}: expected chips, such as 2x4 or 4x4x4')
    if chips(topology) % hosts:
        raise UserError(
            f'--tpu_topology={topology}: {chips(topology)} chips cannot be divided by '
            f'--hosts_per_trial={hosts}'
        )


def chips(topology: str) -> int:
    """Returns the number of chips of a TPU slice.

    Example:
        >>> chips('2x4')
        8
    """
    return math.prod(map(int, topology.split('x')))


def resources(texts: Sequence[str]) -> dict[str, str]:
    """Parses texts such as cpu=4.

    Raises:
        UserError: a text is no resource with its quantity.

    Example:
        >>> resources(['cpu=4', 'memory=16Gi', 'nvidia.com/gpu=1'])
        {'cpu': '4', 'memory': '16Gi', 'nvidia.com/gpu': '1'}
    """
    found = {}
    for text in texts:
        name, _, quantity = text.partition('=')
        if not _RESOURCE.fullmatch(name) or not _QUANTITY.fullmatch(quantity):
            raise UserError(
                f'--resources {text}: expected a resource and its quantity, such as cpu=4, '
                'memory=16Gi or nvidia.com/gpu=1'
            )
        found[name] = quantity
    return found
