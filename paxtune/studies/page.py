import contextlib
import functools
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paxtune.reports.tables import say
from paxtune.studies.base import Args, flag, register
from trainer.runtime.home import expanded
from trainer.symbolic import extras
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.page.front import Application

_DATABASE = 'study.db'  # As `study_file.DATABASE`, whose import takes half a second.
_PORT = 8471
_KIND = 'page-'
_DASH_PREFIXES = (
    'DASH_URL_BASE_PATHNAME', 'DASH_ROUTES_PATHNAME_PREFIX', 'DASH_REQUESTS_PATHNAME_PREFIX',
)  # fmt: skip


@register(
    'page',
    'serves a live page of a study, or of all studies in a directory, to a browser',
    flag('--host', default='127.0.0.1', help='address to listen on'),
    flag('--port', type=int, default=_PORT, help=f'{_PORT} by default; 0: any free one'),
    flag(
        '--page_token_file',
        metavar='FILE',
        help='token that the page requires; made by the command without this flag',
    ),
    flag('--tls_cert', metavar='FILE', help='PEM certificate; serves with TLS'),
    flag('--tls_key', metavar='FILE', help='PEM key of the certificate'),
    flag('--insecure', action='store_true', help='accept other machines without TLS'),
    flag('--base_path', metavar='PATH', default='/', help='path of the page behind a proxy'),
    flag('--public_host', metavar='NAME', default='', help='host name of a proxy'),
)
def _page(args: Args) -> None:
    _check(args)
    extras.require('page', 'studies page', 'dash', 'dash_ag_grid')

    from paxtune.page import access, front
    from paxtune.service import auth
    from trainer.runtime.interrupt import ended_by_signal

    secret = _secret(args)
    base_path, public_host = access.base_path(args.base_path), access.public_host(args.public_host)
    tls = None if args.tls_cert is None else (args.tls_cert, args.tls_key)
    if tls is not None:
        auth.certificate(Path(args.tls_cert), Path(args.tls_key))
    rule = access.access_rule(args.host, secret, tls is not None, base_path, public_host)
    with ended_by_signal() as ended, contextlib.ExitStack() as stack:
        page = front.Lazy(functools.partial(_application(args), args, base_path, stack))
        application = front.protected(page, rule)
        with front.serving(application, args.host, args.port, tls) as port:
            host = socket.gethostname() if args.host in ('0.0.0.0', '::') else args.host
            _keep(args, secret)
            path = f'{base_path}?token={secret}'
            url = f'{rule.scheme}://{auth.address(host, port)}{path}'
            behind = f'\nBehind the proxy: {public_host}{path}' if public_host else ''
            is_json = args.format == 'json'
            say(json.dumps({'url': url}) if is_json else f'The study page: {url}{behind}')
            # Dash and the first reading take seconds: browsers may open the address meanwhile.
            page.application()
            ended.wait()


def _application(args: Args) -> 'Callable[[Args, str, contextlib.ExitStack], Application]':
    """Chooses the page of a study, or of the studies below a directory; UserError without both."""
    root = Path(expanded(args.dir)) if hasattr(args, 'dir') else None
    if root is None or (root / _DATABASE).exists():
        return _of_study

    from paxtune.storage.study_file import how_to_recover

    if not root.is_dir() or how_to_recover(root):
        raise UserError(f'{args.where.directory}: there is no study')
    return _of_studies


def _of_study(args: Args, base_path: str, stack: contextlib.ExitStack) -> 'Application':
    """Makes the page of a study, and computes the overview before a browser asks for it."""
    from paxtune.page.commands import location_arguments
    from paxtune.page.live import LiveStudy
    from paxtune.page.server import study_app
    from paxtune.page.views import overview

    location = location_arguments(args)
    live = stack.enter_context(contextlib.closing(LiveStudy(args.where, location)))
    app = study_app(live, base_path)
    overview.prepare(live, app.server, base_path)
    application: Application = app.server
    return application


def _of_studies(args: Args, base_path: str, stack: contextlib.ExitStack) -> 'Application':
    """Makes the page of all studies below a directory."""
    from paxtune.page.commands import location_arguments
    from paxtune.page.live_studies import LiveStudies
    from paxtune.page.server import study_app
    from paxtune.page.studies import StudiesPage

    root, *flags = location_arguments(args)
    studies = LiveStudies(expanded(root), base_path, study_app, flags)
    return StudiesPage(stack.enter_context(contextlib.closing(studies)))


def _check(args: Args) -> None:
    from paxtune.service import auth

    if prefixes := [name for name in _DASH_PREFIXES if name in os.environ]:
        raise UserError(f'{prefixes[0]} is set: unset it, and give --base_path=PATH instead')
    if not 0 <= args.port < 2**16:
        raise UserError(f'--port={args.port}: expected 0 to 65535')
    if (args.tls_cert is None) != (args.tls_key is None):
        raise UserError('--tls_cert and --tls_key belong together: give both or none')
    if not auth.is_loopback(args.host) and args.tls_cert is None and not args.insecure:
        raise UserError(
            f'--host={args.host}: the token and the study would cross the network unencrypted. '
            'Give --tls_cert and --tls_key, or --insecure'
        )


def _secret(args: Args) -> str:
    """The token that requests need: on loopback a page at the same port has the same again."""
    from paxtune.service import tokens

    if args.page_token_file is not None:
        return str(tokens.secret(args.page_token_file))
    kept = tokens.local_secret(args.port, _KIND) if _keeps(args) else None
    return kept or secrets.token_urlsafe(32)


def _keep(args: Args, secret: str) -> None:
    """Keeps the token, so that open browsers still have it after the command was repeated."""
    from paxtune.service import tokens

    if args.page_token_file is None and _keeps(args):
        try:
            tokens.keep_local(args.port, secret, _KIND)
        except UserError as error:
            reason = str(error).partition('. Give')[0]
            print(f'{reason}. Open the printed address after each start.', file=sys.stderr)


def _keeps(args: Args) -> bool:
    from paxtune.service import auth

    return auth.is_loopback(args.host) and args.port != 0
