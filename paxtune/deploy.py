"""Prints the manifests of a search on a cluster; checks the health of its service.

    python -m paxtune.deploy kubernetes --exp=lm.C4Tunable --workers=16 \\
        --image=registry.example/paxtune:1 --job_log_dir=gs://my-bucket/c4 \\
        --resources cpu=4 memory=16Gi nvidia.com/gpu=1 -- --num_trials=256 > study.yaml
    kubectl apply -f study.yaml

The commands that create the Secrets stand at the top of study.yaml. After `--` come further flags
of `paxtune.search`. Exit codes: 0 done, 2 bad input, 75 the service does not answer.
"""

import argparse
from collections.abc import Sequence

from paxtune.service import study_location
from trainer import command
from trainer.command import positive_int
from trainer.symbolic.errors import UserError


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    args = parser().parse_args(argv)
    args.run(args)
    return 0


def parser() -> argparse.ArgumentParser:
    """Makes the parser of the command's flags."""
    flags = command.parser(__doc__)
    commands = flags.add_subparsers(required=True, metavar='COMMAND')
    _add_kubernetes_flags(
        commands.add_parser('kubernetes', help='prints manifests as YAML', allow_abbrev=False)
    )
    probe = commands.add_parser('probe', help='checks the health of a service', allow_abbrev=False)
    probe.set_defaults(run=_probe)
    probe.add_argument(study_location.FLAG, required=True, metavar='HOST:PORT', help='its address')
    probe.add_argument('--tls_ca', metavar='FILE', help='use TLS and trust this authority, PEM')
    probe.add_argument(
        '--wait_seconds', type=float, default=10.0, help='wait so long for it; 10 by default'
    )
    return flags


def _add_kubernetes_flags(flags: argparse.ArgumentParser) -> None:
    flags.set_defaults(run=_kubernetes)
    for name, metavar, what in (
        ('exp', 'NAME', 'the experiment, which the image can import'),
        ('image', 'IMAGE', 'has paxtune and the experiment; see Dockerfile'),
        ('job_log_dir', 'WHERE', 'where trials write: gs://BUCKET/PATH or pvc://CLAIM/PATH'),
    ):
        flags.add_argument(f'--{name}', required=True, metavar=metavar, help=what)
    flags.add_argument('--workers', required=True, type=positive_int, help='trials at a time')
    flags.add_argument('--name', help='begins the names of all objects; made of --exp by default')
    flags.add_argument(
        '--database',
        metavar='URL',
        help='postgresql://USER@HOST/NAME; a volume with SQLite by default',
    )
    flags.add_argument(
        '--hosts_per_trial', type=positive_int, default=1, help='pods of a worker; needs JobSet'
    )
    command.add_list_flag(
        flags, '--resources', 'NAME=QUANTITY', 'of each pod of a worker, such as cpu=4'
    )
    flags.add_argument('--tpu_accelerator', metavar='TYPE', help="of GKE's nodes: tpu-v6e-slice, …")
    flags.add_argument('--tpu_topology', metavar='AxB', help='of a slice, for each trial: 2x4, …')
    flags.add_argument(
        'search_flags', nargs='*', metavar='-- FLAG', help='further flags of paxtune.search'
    )


def _kubernetes(args: argparse.Namespace) -> None:
    from paxtune.kubernetes import text
    from paxtune.kubernetes.deployment import Deployment, check, name_for, resources

    if (args.tpu_accelerator is None) != (args.tpu_topology is None):
        raise UserError('--tpu_accelerator and --tpu_topology belong together: give both or none')
    _check_search_flags(args)
    deployment = Deployment(
        exp=args.exp,
        image=args.image,
        job_log_dir=args.job_log_dir,
        name=args.name or name_for(args.exp),
        workers=args.workers,
        hosts_per_trial=args.hosts_per_trial,
        database=args.database,
        resources=resources(args.resources),
        tpu=None if args.tpu_topology is None else (args.tpu_accelerator, args.tpu_topology),
        search_flags=tuple(args.search_flags),
    )
    check(deployment)
    print(text.render(deployment), end='')


def _check_search_flags(args: argparse.Namespace) -> None:
    """Raises UserError for flags of the search that the manifests set; exits for unknown ones."""
    from paxtune import search

    given = search.parser().parse_args([f'--exp={args.exp}', *args.search_flags])
    for name in _SET_BY_MANIFESTS:
        if getattr(given, name, None):
            raise UserError(f'-- --{name}: the manifests set it themselves')
    if given.exp != args.exp:
        raise UserError(f'-- --exp={given.exp}: give --exp once, before --')


_SET_BY_MANIFESTS = (
    *(
        'vizier_endpoint',
        'storage',
        'tls',
        'tls_ca',
        'token_file',
        'job_log_dir',
        'workers',
        'engine',
    ),
    *('coordinator', 'num_processes', 'process_id'),
)


def _probe(args: argparse.Namespace) -> None:
    from pathlib import Path

    from paxtune.service.address import Service

    authority = Path(args.tls_ca) if args.tls_ca else None
    # The health check is of all studies, and needs no token.
    with Service(args.vizier_endpoint, 'probe', tls_ca=authority).client() as client:
        client.connect(args.wait_seconds)


if __name__ == '__main__':
    command.run_command(main)
