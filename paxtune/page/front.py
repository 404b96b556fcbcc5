"""The front of the page: it checks each request, and serves applications made at the first one.

It needs no Dash, whose import takes seconds: the command prints its address before.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias
from urllib.parse import urlencode

from werkzeug.datastructures import Headers
from werkzeug.serving import make_server
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from paxtune.page import failures
from paxtune.page.access import Access
from trainer.symbolic.errors import UserError

Environ: TypeAlias = dict[str, Any]
Application: TypeAlias = Callable[[Environ, Any], Iterable[bytes]]

_TOKEN = 'token'  # In the address that the command prints.
_HEADERS = {
    'X-Content-Type-Options': 'nosniff',
    'Referrer-Policy': 'no-referrer',
    'X-Frame-Options': 'DENY',
}


class Lazy:
    """An application that is made at the first request, or before."""

    def __init__(self, make: Callable[[], Application]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._made: Application | None = None

    def application(self) -> Application:
        """Returns the application; raises UserError where it cannot be made."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        """Answers a request."""
        try:
            return self.application()(environ, start_response)
        except UserError as error:
            return failures.answer(503, str(error))(environ, start_response)


def protected(application: Application, access: Access) -> Application:
    """Makes an application answer the requests that the access rule allows, below its path.

    A proxy may have taken the base path away, or not.
    """
    prefix = access.base_path.rstrip('/')

    def answer(environ: Environ, start_response: Any) -> Iterable[bytes]:
        def begin(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            made = Headers(headers)
            made.update(_HEADERS)
            made.setdefault('Content-Security-Policy', policy())
            return start_response(status, made.to_wsgi_list(), *more)

        path = environ['PATH_INFO']
        if f'{path}/'.startswith(access.base_path):
            path = path[len(prefix) :] or '/'
        below = environ | {'SCRIPT_NAME': prefix, 'PATH_INFO': path}
        own = _checked(Request(below, populate_request=False), access)
        return (application if own is None else own)(below, begin)

    return answer


def _checked(request: Request, access: Access) -> Response | None:
    """Answers a request that is refused, or that brings the token; None for any other."""
    given = request.args.get(_TOKEN)
    refusal = access.refusal(
        request.method, dict(request.headers), given or request.cookies.get(access.cookie)
    )
    if refusal is not None:
        return Response(f'Refused: {refusal}.\n', 403, mimetype='text/plain')
    if given is None:
        return None
    # The token leaves the address, which a browser keeps in its history.
    others = [(name, each) for name, each in request.args.items(multi=True) if name != _TOKEN]
    query = f'?{urlencode(others)}' if others else ''
    path = f'{access.base_path}{request.path.lstrip("/")}'
    answer = redirect(f'{path}{query}', Response=Response)
    answer.autocorrect_location_header = False
    answer.set_cookie(
        access.cookie,
        given,
        path=access.base_path,
        httponly=True,
        samesite='Strict',
        secure='https' in (access.scheme, request.headers.get('X-Forwarded-Proto')),
    )
    return answer


def policy(hashes: Iterable[str] = ()) -> str:
    """The content security policy: scripts of the server alone, nothing from elsewhere.

    Args:
        hashes: of the scripts in a page.
    """
    return '; '.join(
        [
            "default-src 'self'",
            ' '.join(["script-src 'self'", *hashes]),
            "style-src 'self' 'unsafe-inline'",  # Plotly styles its elements.
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


@contextlib.contextmanager
def serving(
    application: Application, host: str, port: int, tls: tuple[str, str] | None = None
) -> Iterator[int]:
    """Serves an application while inside; yields its port. Raises UserError if that is taken.

    Args:
        application: answers the requests.
        host: the address to listen at.
        port: 0 for any free one.
        tls: the files of a certificate and its key.
    """
    failures.log_lines_of('werkzeug')
    try:
        server = make_server(host, port, application, threaded=True, ssl_context=tls)
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
