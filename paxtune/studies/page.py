import contextlib
import json
import secrets
import socket
from pathlib import Path

from paxtune.reports.tables import say
from paxtune.studies.base import Args, flag, register
from trainer.symbolic.errors import UserError

_PORT = 8471


@register(
    'page',
    'serves a live page of a study to a browser',
    flag('--host', default='127.0.0.1', help='address to listen on'),
    flag('--port', type=int, default=_PORT, help=f'{_PORT} by default; 0: any free one'),
    flag(
        '--page_token_file',
        metavar='FILE',
        help='token that the page requires; one is made up if other machines can reach the page',
    ),
    flag('--tls_cert', metavar='FILE', help='PEM certificate; serves with TLS'),
    flag('--tls_key', metavar='FILE', help='PEM key of the certificate'),
    flag('--insecure', action='store_true', help='accept other machines without TLS'),
)
def _page(args: Args) -> None:
    secret = _secret(args)
    try:
        import dash  # noqa: F401
    except ImportError as error:
        raise UserError("page: dash is not installed: pip install 'paxtune[page]'") from error

    from paxtune.page import server
    from paxtune.page.commands import StudyCommands, location_arguments
    from paxtune.page.live import LiveStudy
    from paxtune.page.views import overview
    from paxtune.service import auth
    from trainer.runtime.interrupt import ended_by_signal

    tls = None if args.tls_cert is None else (args.tls_cert, args.tls_key)
    if tls is not None:
        auth.certificate(Path(args.tls_cert), Path(args.tls_key))
    location = location_arguments(args)
    commands = StudyCommands(location)
    with ended_by_signal() as ended, contextlib.closing(LiveStudy(args.where, location)) as live:
        access = server.access_rule(args.host, secret, tls is not None)
        app = server.make_app(live, commands, access)
        with server.serving(app, args.host, args.port, tls) as port:
            host = socket.gethostname() if args.host in ('0.0.0.0', '::') else args.host
            query = '' if secret is None else f'?token={secret}'
            url = f'{access.scheme}://{auth.address(host, port)}/{query}'
            say(json.dumps({'url': url}) if args.format == 'json' else f'The study page: {url}')
            overview.prepare(live)
            ended.wait()


def _secret(args: Args) -> str | None:
    """The token that requests need; None where only this machine reaches the page."""
    from paxtune.service import auth, tokens

    if not 0 <= args.port < 2**16:
        raise UserError(f'--port={args.port}: expected 0 to 65535')
    if (args.tls_cert is None) != (args.tls_key is None):
        raise UserError('--tls_cert and --tls_key belong together: give both or none')
    if args.page_token_file is not None:
        return tokens.secret(args.page_token_file)
    if auth.is_loopback(args.host):
        return None
    if args.tls_cert is None and not args.insecure:
        raise UserError(
            f'--host={args.host}: the token and the study would cross the network unencrypted. '
            'Give --tls_cert and --tls_key, or --insecure'
        )
    return secrets.token_urlsafe(32)
