"""Requests that fail: one line for the browser, and one in a bounded log."""

import logging
import traceback
from typing import TYPE_CHECKING, Any

from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response

from paxtune.service.bounded_log import BoundedLog
from trainer.command import printable

if TYPE_CHECKING:
    from dash import Dash

_MAX_BYTES = 2**23
"""Limit of a request: a note is the longest that a browser sends."""

_MAX_LENGTH = 300  # Characters of a line.
_CALLBACK = '/_dash-update-component'


def register(app: 'Dash') -> None:
    """Answers requests that fail. Checks of access come before."""
    import flask  # Not before the command has printed its address.

    server: flask.Flask = app.server
    server.config['MAX_CONTENT_LENGTH'] = _MAX_BYTES
    log = BoundedLog(logging.getLogger(__name__))

    @server.before_request
    def check() -> Any:
        if flask.request.path != _CALLBACK:
            return None
        try:
            body = flask.request.get_json()
        except RecursionError:
            body = None
        if is_callback(app, body):
            return None
        return answer(400, 'this is no request of a view of the page')

    @server.errorhandler(Exception)
    def fail(error: Exception) -> Any:
        if isinstance(error, HTTPException):
            is_failure = error.code is not None and error.code >= 400
            return answer(error.code or 500, error.description) if is_failure else error
        frame = traceback.extract_tb(error.__traceback__)[-1]
        name = type(error).__name__
        where = f'{frame.filename}:{frame.lineno}'
        log.write(name, logging.ERROR, _line(f'The page: {name} at {where}: {error}'))
        return answer(500, f'the page failed with {name}; the log of the command says where')


def log_lines_of(name: str) -> None:
    """Bounds the log of a library, in which it writes tracebacks: one line for each record."""
    log = BoundedLog(logging.getLogger(__name__))

    def is_written(record: logging.LogRecord) -> bool:
        lines = record.getMessage().strip().splitlines() or ['']
        log.write(record.levelno, record.levelno, _line(f'The page: {lines[-1]}'))
        return False

    logger = logging.getLogger(name)
    logger.setLevel(logging.ERROR)
    if not logger.filters:
        logger.addFilter(is_written)


def is_callback(app: 'Dash', body: Any) -> bool:
    """Returns True for the form of a request to one of an application's callbacks."""
    name = body.get('output') if isinstance(body, dict) else None
    if not isinstance(name, str) or name not in app.callback_map:
        return False
    known = app.callback_map[name]
    return all(_fit(known[part], body.get(part, [])) for part in ('inputs', 'state'))


def _fit(known: list[dict[str, Any]], given: Any) -> bool:
    """Returns True for values of these properties, in this order."""
    is_list = isinstance(given, list) and len(given) == len(known)
    return is_list and all(map(_fits, known, given))


def _fits(known: dict[str, Any], given: Any) -> bool:
    is_pattern = known['id'].startswith('{')
    if isinstance(given, list):  # The elements that a pattern matches.
        return is_pattern and all(_fits(known, each) for each in given)
    if not isinstance(given, dict) or given.get('property') != known['property']:
        return False
    is_address = known['property'] in ('pathname', 'search')
    if is_address and not isinstance(given.get('value'), str):
        return False
    return is_pattern or given.get('id') == known['id']


def answer(code: int, message: str | None) -> Response:
    """Answers with one line of text."""
    # A path in the message need not be UTF-8.
    text = f'Refused: {_line(message or "")}.\n'.encode('utf-8', 'backslashreplace')
    return Response(text, code, mimetype='text/plain')


def _line(text: str) -> str:
    line = printable(' '.join(text.split())).rstrip('.')
    return line if len(line) <= _MAX_LENGTH else f'{line[: _MAX_LENGTH - 1]}…'
