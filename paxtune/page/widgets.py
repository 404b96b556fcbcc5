"""Components that several views have in common."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import flask
from dash import Dash, Input, Output, State, html
from dash.development.base_component import Component

from paxtune.reports.tables import Document, Row, Table, cell
from paxtune.study.columns import number
from trainer.command import printable
from trainer.symbolic.errors import UserError

_UNITS = (('d', 86_400), ('h', 3600), ('min', 60), ('s', 1))

INTERVAL_MS = 1000
"""Between two questions of a browser for a new version of the study."""


def text(value: Any) -> str:
    """Formats a cell; a note keeps its lines."""
    return value if isinstance(value, str) else cell(value)


def encodable(name: str) -> str:
    """Returns the name of a file for a browser: names need not be UTF-8."""
    return printable(name.encode('utf-8', 'backslashreplace').decode())


def table(content: Table, **attributes: Any) -> html.Div:
    """Renders a table; columns that are empty in all rows are left out."""
    columns = [key for key in content.columns if any(cell(row.get(key)) for row in content.rows)]
    if not columns:
        return html.Div()
    parts: list[Any] = [html.H3(content.title)] if content.title else []
    if columns[1:] == ['value']:  # Values of all kinds stand below each other.
        attributes = {'className': 'vertical'} | attributes
    parts.append(grid(content.rows, {key: key for key in columns}, **attributes))
    if content.note:
        parts.append(html.P(content.note, className='remark'))
    return html.Div(parts, className='part')


def grid(
    rows: Sequence[Row],
    columns: Mapping[str, str],
    heading: Callable[[str], Any] | None = None,
    **attributes: Any,
) -> html.Div:
    """Renders rows; the column `trial` links to the trial, and a cell may be a component.

    Args:
        columns: names for people by key.
        heading: makes the content of a heading of a key; its name by default.
    """
    head = html.Tr([html.Th(heading(key) if heading else columns[key]) for key in columns])
    body = [html.Tr([_cell(key, row.get(key)) for key in columns]) for row in rows]
    return html.Div(
        html.Table([html.Thead(head), html.Tbody(body)], **attributes), className='scroll'
    )


def _cell(key: str, value: Any) -> html.Td:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and key == 'trial':
        return html.Td(trial_link(int(value)))
    if isinstance(value, Component):
        return html.Td(value)
    is_number |= isinstance(value, str) and number(value) is not None  # With its digits.
    classes = ['number'] if is_number else []
    if key == 'state':
        classes.append(f'state {value}')
    # A float has few digits here, and all of them under the pointer.
    is_cut = isinstance(value, float) and cell(value) != repr(value)
    title = repr(value) if is_cut else None
    return html.Td(text(value), className=' '.join(classes), title=title)


def trial_link(number: int, name: str = '') -> html.A:
    """Links to the view of a trial, with the settings of the address: see `trials.js`."""
    return html.A(name or str(number), href=address(f'/trial/{number}'), className='trial')


def document(report: Document) -> list[Any]:
    """Renders the tables of a document, and its remark."""
    parts: list[Any] = [table(each) for each in report.tables]
    return [*parts, remark(report.remark)] if report.remark else parts


def labelled(name: str, control: Component) -> html.Label:
    """Renders the name of a control above it."""
    return html.Label([html.Span(name), control])


def remark(message: str) -> html.P:
    """Renders a line of text below something."""
    return html.P(message, className='remark')


def problem(error: UserError | str) -> html.Pre:
    """Renders an error."""
    return html.Pre(str(error), className='problem', role='alert')


def guarded(render: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a callback of one output show errors for people in place of its output."""

    def render_or_explain(*arguments: Any) -> Any:
        try:
            return render(*arguments)
        except UserError as error:
            return problem(error)

    return render_or_explain


PATH = State('url', 'pathname')
"""The path in the address."""


def follow(app: Dash, element: str, render: Callable[..., Any], *states: State) -> None:
    """Renders an element after each change of the study: a function of states."""

    @app.callback(Output(element, 'children'), Input('version', 'data'), *states)
    @guarded
    def refresh(version: str, *given: Any) -> Any:
        return render(*given)


def follow_trial(app: Dash, element: str, render: Callable[[int], Any]) -> None:
    """Renders an element after each change of the study: a function of the shown trial."""
    follow(app, element, lambda path: render(trial_at(path)), PATH)


def on_click(app: Dash, button: str, output: str, act: Callable[..., str], *states: State) -> None:
    """Shows the text that a function of states returns, once a button is clicked."""

    @app.callback(
        Output(output, 'children', allow_duplicate=True),
        Input(button, 'n_clicks'),
        *states,
        prevent_initial_call=True,
    )
    @guarded
    def run(clicks: int, *given: Any) -> Any:
        return html.Pre(act(*given))


def address(path: str) -> str:
    """Returns the path of a view in a browser: it begins with `--base_path`."""
    return f'{_base()}{path}'


def path_in(address: str) -> str:
    """Returns the path of the view that a browser shows, without `--base_path`."""
    return address.removeprefix(_base()) or '/'


def _base() -> str:
    return flask.request.script_root if flask.has_request_context() else ''


def trial_in(path: str) -> int | None:
    """Returns the trial whose view a browser shows at a path; None for another view.

    Example:
        >>> trial_in('/trial/12'), trial_in('/trials')
        (12, None)
    """
    found = re.fullmatch(r'/trial/(\d{1,9})', path_in(path))
    return int(found[1]) if found else None


def trial_at(path: str) -> int:
    """Returns the same; raises UserError for another address."""
    number = trial_in(path)
    if number is None:
        raise UserError(f'{path}: expected {address("/trial/NUMBER")}')
    return number


def span(seconds: float) -> str:
    """Renders a time in its largest unit.

    Example:
        >>> span(200.0), span(0.2)
        ('3 min', '0 s')
    """
    unit, length = next((each for each in _UNITS if seconds >= each[1]), _UNITS[-1])
    return f'{max(0, int(seconds // length)):,} {unit}'


def aria(**values: str) -> dict[str, Any]:
    """Makes attributes for screen readers.

    Example:
        >>> aria(label='Views')
        {'aria-label': 'Views'}
    """
    return {f'aria-{name}': value for name, value in values.items()}


def bar(count: int, total: int, name: str) -> html.Progress:
    """Renders a share."""
    return html.Progress(value=str(min(count, total)), max=str(total), **aria(label=name))


def facts(pairs: Iterable[tuple[str, Any]]) -> html.Div:
    """Renders the numbers that matter most, side by side."""
    boxes = [
        html.Div(
            [
                html.Div(
                    value if isinstance(value, list | Component) else text(value),
                    className='value',
                ),
                html.Div(name, className='name'),
            ]
        )
        for name, value in pairs
        if value is not None
    ]
    return html.Div(boxes, className='facts')
