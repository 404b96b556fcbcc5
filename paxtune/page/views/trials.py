"""The table of trials, filtered, sorted and divided into pages by the server."""

from collections.abc import Sequence
from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from paxtune.page import rows, widgets
from paxtune.page.live import LiveStudy
from paxtune.page.view import Page, View
from paxtune.reports.tables import Row, to_csv
from paxtune.study.columns import Column, ordered, row_of
from trainer.symbolic.errors import UserError

_FILE = {'filename': 'trials.csv', 'type': 'text/csv'}
_HELP = 'state=completed seconds>10 "some text" …'


def layout(live: LiveStudy) -> list[Any]:
    """Makes the view; callbacks fill in live content."""
    metrics = [
        {'label': each.header, 'value': each.key}
        for each in _columns(live)
        if each.group == 'metrics'
    ]
    return [
        dcc.Store(id='sort', data={'column': 'trial', 'descending': True}),
        dcc.Store(id='page-number', data=0),
        html.Div(
            [
                dcc.Input(
                    id='filter', type='text', debounce=0.4, placeholder=_HELP, spellCheck=False
                ),
                dcc.Dropdown(metrics, [], multi=True, id='metrics', placeholder='metrics to show'),
            ],
            className='form',
        ),
        html.Div(id='trials-live'),
        html.Div(
            [
                html.Button('‹ previous', id='previous'),
                html.Span(id='page-label'),
                html.Button('next ›', id='next'),
                html.Button('Download as CSV', id='download'),
            ],
            className='pager',
        ),
        dcc.Download(id='csv'),
        html.Div(id='csv-problem'),
    ]


def register(app: Dash, page: Page) -> None:
    """Adds the callbacks of the view."""
    live = page.live

    @app.callback(
        Output('sort', 'data'),
        Input({'type': 'sort', 'column': ALL}, 'n_clicks'),
        State('sort', 'data'),
        prevent_initial_call=True,
    )
    def sort(clicks: list[int | None], sort: dict[str, Any]) -> Any:
        if not any(clicks) or not isinstance(ctx.triggered_id, dict):
            return no_update  # The headings were redrawn.
        column = ctx.triggered_id['column']
        is_same = sort['column'] == column
        return {'column': column, 'descending': is_same and not sort['descending']}

    @app.callback(
        Output('page-number', 'data'),
        Input('previous', 'n_clicks'),
        Input('next', 'n_clicks'),
        Input('filter', 'value'),
        Input('sort', 'data'),
        State('page-number', 'data'),
        prevent_initial_call=True,
    )
    def turn(before: Any, after: Any, text: Any, sort: Any, number: int) -> int:
        step = {'previous': -1, 'next': 1}.get(str(ctx.triggered_id))
        return 0 if step is None else max(0, number + step)

    @app.callback(
        Output('trials-live', 'children'),
        Output('page-label', 'children'),
        Input('version', 'data'),
        Input('filter', 'value'),
        Input('sort', 'data'),
        Input('page-number', 'data'),
        Input('metrics', 'value'),
    )
    def refresh(
        version: str, text: str | None, sort: dict[str, Any], number: int, metrics: list[str]
    ) -> tuple[Any, str]:
        try:
            return _page(live, text or '', sort, number, metrics or [])
        except UserError as error:
            return widgets.problem(error), ''

    @app.callback(
        Output('csv', 'data'),
        Output('csv-problem', 'children'),
        Input('download', 'n_clicks'),
        State('filter', 'value'),
        State('sort', 'data'),
        prevent_initial_call=True,
    )
    def download(clicks: int, text: str | None, sort: dict[str, Any]) -> tuple[Any, Any]:
        try:
            return {'content': csv_of(live, text or '', sort), **_FILE}, ''
        except UserError as error:
            return no_update, widgets.problem(error)


def csv_of(live: LiveStudy, text: str, sort: dict[str, Any]) -> str:
    """Makes the whole table as CSV: all columns of the trials that a filter finds, in its order.

    Args:
        live: the study.
        text: the filter.
        sort: the column, and whether the order is descending.

    Raises:
        UserError: the study has no such column.
    """
    columns = _columns(live)
    return to_csv(_found(live, columns, text, sort), [each.key for each in columns])


def _columns(live: LiveStudy) -> list[Column]:
    def columns() -> list[Column]:
        snapshot = live.snapshot()
        return rows.columns_of(live.study, snapshot.trials, snapshot.record.notes)

    found: list[Column] = live.computed('columns', columns)
    return found


def _found(
    live: LiveStudy, columns: Sequence[Column], text: str, sort: dict[str, Any]
) -> list[Row]:
    """The rows of the trials that a filter finds, in order."""
    made = [row_of(trial, columns) for trial in live.snapshot().trials]
    found = rows.filtered(made, rows.parse_filter(text, columns))
    return ordered(found, lambda row: row.get(sort['column']), sort['descending'])


def _page(
    live: LiveStudy, text: str, sort: dict[str, Any], number: int, metrics: list[str]
) -> tuple[Any, str]:
    columns, trials, is_down = _columns(live), live.snapshot().trials, sort['descending']
    if sort['column'] not in [each.key for each in columns]:
        raise UserError(f'there is no column {sort["column"]}')
    if sort['column'] == 'trial' and not text.strip():  # Only the visible rows are made.
        shortlist, number, count = rows.page_of(trials[::-1] if is_down else trials, number)
        visible: list[Row] = [row_of(trial, columns) for trial in shortlist]
        num_found = len(trials)
    else:
        found = _found(live, columns, text, sort)
        (visible, number, count), num_found = rows.page_of(found, number), len(found)
    names = {e.key: e.header for e in columns if e.group != 'metrics' or e.key in metrics}

    def heading(key: str) -> html.Button:
        sign = ''
        if key == sort['column']:
            sign = ' ▼' if sort['descending'] else ' ▲'
        return html.Button(names[key] + sign, id={'type': 'sort', 'column': key}, className='sort')

    label = f'page {number + 1} of {count}: {num_found:,} of {len(trials):,} trials'
    return widgets.grid(visible, names, heading, id='trials'), label


VIEW = View('/trials', layout, register, 'Trials')
