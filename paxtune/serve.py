"""Serves studies to many workers, on this machine and on others.

    python -m paxtune.serve --database=runs/studies.db
    python -m paxtune.search --exp=lm.StdlibTunable --vizier_endpoint=127.0.0.1:8470

The database is an SQLite file or a URL, postgresql://user@host/name; its password may come from
PGPASSWORD or ~/.pgpass. Only one service can use a database at a time. By default only the current
user on this machine can connect; other machines need TLS and a token. Ctrl-C or SIGTERM stops the
service when all calls are answered; workers wait for it. Exit codes: 0 stopped, 2 bad input.
"""

import contextlib
import logging
import secrets
import shlex
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer import command
from trainer.runtime.interrupt import ended_by_signal
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import argparse

    from paxtune.storage.database import Database

_PORT = 8470


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input, or if a port or file is unavailable."""
    args = parser().parse_args(argv)
    _check(args)
    logging.basicConfig(
        level=logging.INFO, format='%(asctime)s %(levelname)s %(name)s: %(message)s'
    )
    with ended_by_signal() as ended, contextlib.closing(_database(args.database)) as database:
        database.hold()
        with _serving(args, database) as (port, metrics_port):
            print(_greeting(args, database, port, metrics_port), flush=True)
            ended.wait()
            logging.getLogger(__name__).info('stopping after the running calls')
    return 0


def parser() -> 'argparse.ArgumentParser':
    """Makes the parser of the command's flags."""
    flags = command.parser(__doc__)
    flags.add_argument(
        '--database',
        required=True,
        metavar='FILE_OR_URL',
        help='database of the studies, such as runs/studies.db or postgresql://user@host/name',
    )
    flags.add_argument('--host', default='127.0.0.1', help='address to listen on')
    flags.add_argument('--port', type=int, default=_PORT, help=f'{_PORT} by default; 0: any free')
    flags.add_argument('--tls_cert', metavar='FILE', help='PEM certificate; enables TLS')
    flags.add_argument('--tls_key', metavar='FILE', help='PEM key of the certificate')
    flags.add_argument(
        '--token_file',
        metavar='FILE',
        help='file with the tokens of clients and their roles; or set PAXTUNE_TOKEN',
    )
    flags.add_argument(
        '--insecure',
        action='store_true',
        help='accept other users and machines without TLS or without a token',
    )
    flags.add_argument(
        '--metrics_port', type=int, help='port where Prometheus reads metrics, at /metrics'
    )
    flags.add_argument(
        '--lease_seconds',
        type=float,
        default=30.0,
        help='time without a heartbeat after which a worker loses its trial; 30 by default',
    )
    return flags


def _check(args: 'argparse.Namespace') -> None:
    from paxtune.service import auth, tokens

    for flag in ('port', 'metrics_port'):
        value = getattr(args, flag)
        if value is not None and not 0 <= value < 2**16:
            raise UserError(f'--{flag}={value}: expected 0 to 65535')
    if not 5.0 <= args.lease_seconds <= 86400.0:  # A heartbeat comes every 3 s.
        raise UserError(f'--lease_seconds={args.lease_seconds:g}: expected 5 to 86400')
    if (args.tls_cert is None) != (args.tls_key is None):
        raise UserError('--tls_cert and --tls_key belong together: give both or none')
    args.tokens = tokens.given(args.token_file)
    is_safe = args.tls_cert is not None and args.tokens
    if not auth.is_loopback(args.host) and not is_safe and not args.insecure:
        raise UserError(
            f'--host={args.host}: other machines could read and change the studies. Give '
            '--tls_cert, --tls_key and --token_file, or --insecure if every machine in the '
            'network may do that.'
        )
    args.local_secret = None
    if not args.tokens and not args.insecure:
        args.local_secret = tokens.local_secret(args.port) or secrets.token_urlsafe(32)
        args.tokens = [tokens.Token(args.local_secret)]


def _database(where: str) -> 'Database':
    from paxtune.storage.database import Database

    if '://' in where:
        return Database(where)
    path = Path(where)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'--database={where}: {error.strerror}') from error
    return Database(path)


@contextlib.contextmanager
def _serving(args: 'argparse.Namespace', database: 'Database') -> Iterator[tuple[int, int | None]]:
    """Serves while entered. Yields the port, and the port of the metrics."""
    from paxtune.service import monitoring, tokens
    from paxtune.service.registry import DatabaseStudies
    from paxtune.service.server import Server
    from paxtune.vizier_service.service import VizierService

    studies = DatabaseStudies(database, args.lease_seconds)
    metrics = monitoring.Metrics(studies.opened)
    tls = None if args.tls_cert is None else (Path(args.tls_cert), Path(args.tls_key))
    server = Server(
        studies,
        args.host,
        args.port,
        tokens=args.tokens,
        tls=tls,
        is_ready=studies.look,
        metrics=metrics,
        vizier_service=VizierService(database),
    )
    with contextlib.ExitStack() as stack:
        metrics_port = None
        if args.metrics_port is not None:
            served = monitoring.serve(metrics, args.host, args.metrics_port, args.tokens, tls)
            metrics_port = stack.enter_context(served)
        stack.enter_context(server)
        if args.local_secret is not None:
            tokens.keep_local(server.port, args.local_secret)
        yield server.port, metrics_port


def _greeting(
    args: 'argparse.Namespace', database: 'Database', port: int, metrics_port: int | None
) -> str:
    from paxtune.service import auth, tokens

    served = auth.address(args.host, port)
    safety = 'TLS' if args.tls_cert else 'no TLS'
    if args.local_secret is not None:
        safety += f', token in {tokens.local_file(port)}'
    else:
        safety += ', with tokens' if args.tokens else ', no token'
    host = socket.gethostname() if args.host in ('0.0.0.0', '::') else args.host
    join = [f'--vizier_endpoint={auth.address(host, port)}']
    join += ['--tls'] if args.tls_cert else []
    join += ['--token_file=FILE'] if args.tokens and args.local_secret is None else []
    example = shlex.join(['python', '-m', 'paxtune.search', '--exp=lm.StdlibTunable', *join])
    lines = [f'Serving {database} at {served} ({safety}). To join:', f'  {example}']
    if not args.tokens and not args.tls_cert:
        lines.append(f"Vizier's clients: server_endpoint = '{auth.address(host, port)}'")
    if metrics_port is not None:
        scheme = 'https' if args.tls_cert else 'http'
        lines.append(f'Metrics: {scheme}://{auth.address(host, metrics_port)}/metrics')
    return '\n'.join(lines)


if __name__ == '__main__':
    command.run_command(main)
