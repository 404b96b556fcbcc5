"""The files of a trial on its view: their list, viewers by kind, and the files themselves."""

import csv
import functools
import io
import itertools
import json
import os
import re
from pathlib import PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import quote

import flask
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from paxtune.page import widgets
from paxtune.page.live import LiveStudy
from paxtune.page.trial_files import MAX_FILES, File, files_of, open_file
from trainer.command import printable
from trainer.symbolic.errors import UserError

_IMAGES = {
    '.gif': 'image/gif', '.jpeg': 'image/jpeg', '.jpg': 'image/jpeg', '.png': 'image/png',
    '.webp': 'image/webp',
}  # fmt: skip
_SOUNDS = {'.wav': 'audio/wav'}
_SHOWN_BY_A_BROWSER = _IMAGES | _SOUNDS

_TAIL_BYTES = 2**16
_MAX_PARSED_BYTES = 2**20
_MAX_ROWS, _MAX_COLUMNS = 100, 30

_POLICY = "default-src 'none'; sandbox"


def elements() -> list[Any]:
    """Makes the elements, which callbacks fill in."""
    return [
        html.H3('Files'),
        html.Div(id='trial-files'),
        dcc.Loading(html.Div(id='file-shown')),
    ]


def register(app: Dash, live: LiveStudy) -> None:
    """Adds the callbacks, and the address of the files."""

    widgets.follow_trial(app, 'trial-files', functools.partial(_listed, live))

    @app.callback(
        Output('file-shown', 'children'),
        Input({'type': 'file', 'name': ALL}, 'n_clicks'),
        State('url', 'pathname'),
        prevent_initial_call=True,
    )
    @widgets.guarded
    def show(clicks: list[int | None], path: str) -> Any:
        if not any(clicks) or not isinstance(ctx.triggered_id, dict):
            return no_update  # The list was redrawn.
        return view_of(live, widgets.trial_at(path), ctx.triggered_id['name'])

    server: flask.Flask = app.server
    server.add_url_rule('/files/<int:trial>', 'file', functools.partial(_answer, live))


def _listed(live: LiveStudy, trial: int) -> Any:
    try:
        found = files_of(live.study, trial)
    except UserError as error:
        return widgets.remark(str(error))
    rows = [{'file': _button(each), 'bytes': each.size} for each in found]
    parts: list[Any] = [widgets.grid(rows, {'file': 'file', 'bytes': 'bytes'})] if rows else []
    if len(found) == MAX_FILES:
        parts.append(widgets.remark(f'These are the first {MAX_FILES} files.'))
    return parts or widgets.remark('The trial has no files.')


def _button(file: File) -> Any:
    """Makes the button of a file; plain text if its name cannot be sent to a browser."""
    if not _is_text(file.name):
        return widgets.encodable(file.name)
    id_ = {'type': 'file', 'name': file.name}
    return html.Button(printable(file.name), id=id_, className='sort')


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def view_of(live: LiveStudy, trial: int, name: str) -> list[Any]:
    """Renders a file: an image, a sound, a table, or the end of a text. Raises UserError."""
    address = widgets.address(f'/files/{trial}?name={quote(name)}')
    suffix = PurePosixPath(name).suffix.lower()
    with open_file(live.study, trial, name) as file:
        if suffix in _IMAGES:
            content: list[Any] = [html.Img(src=address, alt=printable(name), className='picture')]
        elif suffix in _SOUNDS:
            content = [html.Audio(src=address, controls=True)]
        else:
            content = _text_or_table(file, suffix)
    download = html.A('Download', href=address, download=PurePosixPath(name).name)
    return [html.H4(printable(name)), *content, html.P(download)]


def _text_or_table(file: BinaryIO, suffix: str) -> list[Any]:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if suffix in ('.csv', '.json') and size <= _MAX_PARSED_BYTES:
        text = file.read().decode('utf-8', 'replace')
        try:
            return [_table(text) if suffix == '.csv' else _json(text)]
        except (ValueError, RecursionError, csv.Error):
            file.seek(0)
    file.seek(max(0, size - _TAIL_BYTES))
    content = file.read(_TAIL_BYTES)
    if b'\0' in content:
        return [widgets.remark('This is no text.')]
    text = content.decode('utf-8', 'replace')
    parts: list[Any] = [html.Pre(printable(text.replace('\r\n', '\n')), className='log')]
    if size > _TAIL_BYTES:
        parts.append(widgets.remark(f'These are the last {_TAIL_BYTES:,} of {size:,} bytes.'))
    return parts


def _json(text: str) -> Any:
    return html.Pre(printable(json.dumps(json.loads(text), indent=2)), className='log')


def _table(text: str) -> Any:
    head, *lines = itertools.islice(csv.reader(io.StringIO(text)), _MAX_ROWS + 1)
    columns = {str(index): name for index, name in enumerate(head[:_MAX_COLUMNS])}
    rows = [dict(zip(columns, line, strict=False)) for line in lines]
    parts: list[Any] = [widgets.grid(rows, columns)]
    if len(lines) == _MAX_ROWS or len(head) > _MAX_COLUMNS:
        parts.append(
            widgets.remark(f'At most {_MAX_ROWS} rows of {_MAX_COLUMNS} columns are shown.')
        )
    return html.Div(parts)


def _answer(live: LiveStudy, trial: int) -> flask.Response:
    # A name in a path would be normalized.
    name = flask.request.args.get('name', '')
    try:
        file = open_file(live.study, trial, name)
    except UserError as error:
        return flask.Response(f'{printable(str(error))}\n', 404, mimetype='text/plain')
    kind = _SHOWN_BY_A_BROWSER.get(PurePosixPath(name).suffix.lower())
    answer = flask.send_file(
        file,
        mimetype=kind or 'application/octet-stream',
        as_attachment=kind is None,
        download_name=re.sub(r'[^\w.-]', '_', PurePosixPath(name).name, flags=re.ASCII),
        max_age=0,
    )
    answer.headers['Content-Security-Policy'] = _POLICY
    return answer
