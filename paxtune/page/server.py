"""The server of the study page."""

import contextlib
import functools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

import flask
from dash import Dash, Input, Output, State, dcc, html, no_update
from werkzeug.serving import make_server

from paxtune.page import choices, failures, note, widgets
from paxtune.page.access import Access
from paxtune.page.actions import Actions
from paxtune.page.commands import StudyCommands
from paxtune.page.live import LiveStudy
from paxtune.page.view import Page
from paxtune.page.views import VIEWS
from paxtune.plots.script import script
from paxtune.service import auth
from trainer.symbolic.errors import UserError

_TOKEN = 'token'  # In the address that the command prints.
_PLOTLY = '/_dash-component-suites/plotly/package_data/plotly.min.'


def make_app(live: LiveStudy, commands: StudyCommands, access: Access) -> Dash:
    """Makes the application: its views, its callbacks, and the checks before each request."""
    app = Dash(
        'paxtune.page',
        title=escape(live.study.record.experiment),  # Dash does not escape it.
        include_pages_meta=False,
        update_title='',
        serve_locally=True,
        suppress_callback_exceptions=True,  # Each view has components of its own.
        add_log_handler=False,
        assets_folder='assets',
        pages_folder='',
        # The server takes the base path away, where a proxy has left it.
        routes_pathname_prefix='/',
        requests_pathname_prefix=access.base_path,
    )
    page = Page(live, commands, Actions(live, commands))
    app.layout = functools.partial(_page, live)
    _register(app, live)
    for view in VIEWS:
        view.register(app, page)
    choices.register(app, live)
    note.register(app, live, page.actions)
    _protect(app, access)
    failures.register(app)
    _serve_small_plotly(app)
    app.server.wsgi_app = _below(access.base_path, app.server.wsgi_app)
    return app


def _page(live: LiveStudy) -> list[Any]:
    """Makes the frame of all views, for a browser that opens the page."""
    return [
        # Other views open without a reload.
        dcc.Location(id='url', refresh='callback-nav'),
        dcc.Interval(id='tick', interval=widgets.INTERVAL_MS),
        dcc.Store(id='version', data=_version(live)),
        html.Header(
            [
                html.H1(live.study.record.experiment),
                html.Span(str(live.where), className='where'),
                html.Nav(_links(''), id='nav'),
                html.Span(id='connection'),
            ]
        ),
        html.Main(id='view'),
    ]


def _version(live: LiveStudy) -> str | None:
    try:
        return live.version()
    except UserError:  # The first tick says so.
        return None


def _links(path: str) -> list[Any]:
    return [
        dcc.Link(
            view.title,
            href=widgets.address(view.path),
            className='current' if view.path == path else '',
        )
        for view in VIEWS
        if view.title
    ]


def _register(app: Dash, live: LiveStudy) -> None:
    @app.callback(Output('view', 'children'), Input('url', 'pathname'))
    @widgets.guarded
    def view(path: str) -> Any:
        return _layout(live, widgets.path_in(path))

    @app.callback(Output('nav', 'children'), Input('url', 'pathname'))
    def navigation(path: str) -> list[Any]:
        return _links(widgets.path_in(path))

    @app.callback(
        Output('version', 'data'),
        Output('connection', 'children'),
        Input('tick', 'n_intervals'),
        State('version', 'data'),
    )
    def tick(count: int | None, known: str | None) -> tuple[Any, Any]:
        try:
            version = live.version()
        except UserError as error:
            return no_update, widgets.problem(error)
        return no_update if version == known else version, ''


def _layout(live: LiveStudy, path: str) -> Any:
    for view in VIEWS:
        if (numbers := view.numbers_in(path)) is not None:
            return view.layout(live, *numbers)
    raise UserError(f'the page has no {path}')


def _policy(hashes: Sequence[str]) -> str:
    """The content security policy: scripts of the server alone, nothing from elsewhere."""
    return '; '.join(
        [
            "default-src 'self'",
            f"script-src 'self' {' '.join(hashes)}",
            "style-src 'self' 'unsafe-inline'",  # Plotly styles its elements.
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _serve_small_plotly(app: Dash) -> None:
    """Answers with plotly's small bundle, which a browser compiles in a third of the time."""
    small = script()
    server: flask.Flask = app.server

    @server.before_request
    def plotly() -> Any:
        if not small.is_small or not flask.request.path.startswith(_PLOTLY):
            return None
        answer = flask.Response(small.packed, mimetype='text/javascript')
        answer.headers['Content-Encoding'] = 'gzip'
        return answer


def _protect(app: Dash, access: Access) -> None:
    """Refuses requests that the access rule refuses, and adds headers to answers."""
    server: flask.Flask = app.server

    @server.before_request
    def check() -> Any:
        request = flask.request
        given = request.args.get(_TOKEN)
        refusal = access.refusal(
            request.method, dict(request.headers), given or request.cookies.get(access.cookie)
        )
        if refusal is not None:
            return flask.Response(f'Refused: {refusal}.\n', 403, mimetype='text/plain')
        if given is None:
            return None
        # The token leaves the address, which a browser keeps in its history.
        answer = flask.redirect(widgets.address(f'/{request.path.lstrip("/")}'))
        answer.set_cookie(
            access.cookie,
            given,
            path=access.base_path,
            httponly=True,
            samesite='Strict',
            secure='https' in (access.scheme, request.headers.get('X-Forwarded-Proto')),
        )
        return answer

    @server.after_request
    def add_headers(answer: flask.Response) -> flask.Response:
        # Dash adds scripts of its own at the first request.
        answer.headers.setdefault('Content-Security-Policy', _policy(app.csp_hashes()))
        answer.headers['X-Content-Type-Options'] = 'nosniff'
        answer.headers['Referrer-Policy'] = 'no-referrer'
        answer.headers['X-Frame-Options'] = 'DENY'
        return answer


def _below(base_path: str, application: Callable[..., Any]) -> Callable[..., Any]:
    """Makes an application answer below a path, whether or not a proxy has taken it away."""
    prefix = base_path.rstrip('/')

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        path = environ['PATH_INFO']
        if f'{path}/'.startswith(base_path):
            environ['PATH_INFO'] = path[len(prefix) :] or '/'
        return application(environ | {'SCRIPT_NAME': prefix}, start_response)

    return answer


def access_rule(
    host: str, secret: str, is_tls: bool, base_path: str = '/', public_host: str = ''
) -> Access:
    """Makes the rule for a page at an address to listen at: see `Access`."""
    is_loopback = auth.is_loopback(host)
    others = set() if is_loopback else {host, socket.gethostname(), socket.getfqdn()}
    names, scheme = frozenset({'localhost'} | others), 'https' if is_tls else 'http'
    return Access(names, secret, is_loopback, scheme, base_path, public_host)


@contextlib.contextmanager
def serving(app: Dash, host: str, port: int, tls: tuple[str, str] | None = None) -> Iterator[int]:
    """Serves an application while inside; yields its port. Raises UserError if that is taken.

    Args:
        port: 0 for any free one.
        tls: the files of a certificate and its key.
    """
    failures.log_lines_of('werkzeug')
    try:
        server = make_server(host, port, app.server, threaded=True, ssl_context=tls)
    except (OSError, SystemExit) as error:
        raise UserError(f'--host={host} --port={port}: {error}') from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
