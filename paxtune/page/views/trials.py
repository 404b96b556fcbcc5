"""The table of trials: a grid, whose rows the server filters, sorts and cuts into blocks."""

from collections.abc import Sequence
from typing import Any

import dash_ag_grid
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from paxtune.page import figures, rows, widgets
from paxtune.page.links import Link
from paxtune.page.live import LiveStudy
from paxtune.page.view import Page, View
from paxtune.reports.tables import to_csv
from paxtune.study.columns import Column, reward_columns, row_of
from paxtune.study.trial import Trial
from trainer.symbolic.errors import UserError

_FILE = {'filename': 'trials.csv', 'type': 'text/csv'}
_HELP = 'state=completed seconds>10 reason~nan "some text" …'
_GROUPS = {'rewards': 'Reward', 'decisions': 'Decisions', 'metrics': 'Metrics'}
_GROUPS |= {'attributes': 'Attributes', '': 'About'}
_BLOCK, _MAX_BLOCK = 100, 1000  # Rows of a request.
_WIDTH = 8  # Pixels of a character.
_LONG = ('reason', 'note')
_STATES = ('completed', 'active', 'infeasible', 'stopped', 'paused', 'requested')


def layout(live: LiveStudy, link: Link) -> list[Any]:
    """Makes the view that an address describes; callbacks fill in live content."""
    columns = _columns(live)
    first = rows.shown_first(columns, reward_columns(live.study.rewards))
    visible = list(link.values.get('columns', first))
    options = [{'label': each.header, 'value': each.key} for each in columns]
    text = dcc.Input(
        id='filter', type='text', debounce=0.4, placeholder=_HELP, spellCheck=False,
        value=link.one('filter') or '',
    )  # fmt: skip
    return [
        html.Div(widgets.labelled('Filter', text), className='form wide'),
        html.Details([html.Summary('Columns'), dcc.Checklist(options, visible, id='columns')]),
        dcc.Store(id='columns-first', data=first),
        dcc.Store(id='trials-visible'),
        html.Div(id='trials-problem'),
        _grid(live, link, columns, visible),
        html.Div(
            [html.Span(id='trials-label'), html.Button('Download as CSV', id='download')],
            className='pager',
        ),
        dcc.Download(id='csv'),
        html.Div(id='csv-problem'),
    ]


def _grid(live: LiveStudy, link: Link, columns: Sequence[Column], visible: Sequence[str]) -> Any:
    model = link.json('where')
    rows.terms_of(model, columns)  # The address may say anything.
    order = link.values.get('sort', rows.NEWEST)
    rows.sorted_by([], columns, order)
    trials = live.snapshot().trials
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in columns:
        name = each.key if each.key in ('trial', 'state') else _GROUPS[each.group]
        groups.setdefault(name, []).append(_definition(each, trials, order, each.key in visible))
    chosen = {
        'field': 'chosen', 'headerName': '', 'cellDataType': 'boolean', 'editable': True,
        'cellRenderer': 'agCheckboxCellRenderer', 'pinned': 'left', 'width': 46,
        'sortable': False, 'filter': False, 'resizable': False,
    }  # fmt: skip
    return dash_ag_grid.AgGrid(
        id='trials',
        rowModelType='infinite',
        getRowId='params.data.id',
        columnDefs=[
            chosen,
            *groups.pop('trial'),
            *groups.pop('state'),
            *({'headerName': name, 'children': each} for name, each in groups.items()),
        ],
        defaultColDef={'sortable': True, 'resizable': True, 'floatingFilter': True},
        rowClassRules={'chosen': 'params.data && params.data.chosen'},
        dashGridOptions={
            'theme': {'function': 'themeQuartz'},
            'suppressFieldDotNotation': True,
            'suppressDragLeaveHidesColumns': True,
            'suppressMultiSort': False,
            'enableCellTextSelection': True,
            'rowHeight': 28,
            'headerHeight': 32,
            'groupHeaderHeight': 26,
            'floatingFiltersHeight': 36,
            'cacheBlockSize': _BLOCK,
            'maxBlocksInCache': 10,
            # The grid of Dash answers the newest request alone.
            'maxConcurrentDatasourceRequests': 1,
            'initialState': {'filter': {'filterModel': model}} if model else {},
            'tooltipShowDelay': 300,
        },
        style={'height': None, 'width': '100%'},
    )


def _definition(
    column: Column, trials: Sequence[Trial], order: Sequence[str], is_visible: bool
) -> dict[str, Any]:
    """Makes the definition of a column of the grid."""
    is_number, text = rows.text_of(column, trials)
    longest = max([len(column.header) + 3, *(len(text(column.value(t))) for t in trials[-20:])])
    filters = rows.NUMBER_FILTERS if is_number else rows.TEXT_FILTERS
    made: dict[str, Any] = {
        'field': column.key,
        'colId': column.key,
        'headerName': column.header,
        'headerTooltip': column.key,
        'hide': not is_visible,
        'width': min(max(longest * _WIDTH + 34, 90), 320),
        'filter': 'agNumberColumnFilter' if is_number else 'agTextColumnFilter',
        'filterParams': {'filterOptions': filters, 'maxNumConditions': 1},
    }
    if is_number:
        made['type'] = 'rightAligned'
    for place, each in enumerate(order):
        if each.removeprefix('-') == column.key:
            made |= {'sort': 'desc' if each.startswith('-') else 'asc', 'sortIndex': place}
    if column.key == 'trial':
        base = widgets.address('/trial/')
        made |= {'cellRenderer': 'TrialLink', 'cellRendererParams': {'base': base}}
        made |= {'pinned': 'left', 'width': 100}
    if column.key == 'state':
        made['cellClass'] = 'state'
        made['cellClassRules'] = {each: f'params.value == "{each}"' for each in _STATES}
    if column.key in _LONG:
        made['tooltipField'] = column.key
    return made


def register(app: Dash, page: Page) -> None:
    """Adds the callbacks of the view."""
    live = page.live

    @app.callback(
        Output('trials', 'getRowsResponse'),
        Output('trials-label', 'children'),
        Output('trials-problem', 'children'),
        Input('trials', 'getRowsRequest'),
        State('filter', 'value'),
        State('columns', 'value'),
        State('url', 'search'),
        prevent_initial_call=True,
    )
    def block(request: Any, text: Any, visible: Any, search: Any) -> tuple[Any, Any, Any]:
        if not isinstance(request, dict):
            return no_update, no_update, no_update
        try:
            return *_block(live, request, text, visible, search), ''
        except UserError as error:
            return {'rowData': [], 'rowCount': 0}, '', widgets.problem(error)

    _follow(app)

    @app.callback(
        Output('csv', 'data'),
        Output('csv-problem', 'children'),
        Input('download', 'n_clicks'),
        State('trials', 'getRowsRequest'),
        State('filter', 'value'),
        prevent_initial_call=True,
    )
    def download(clicks: int, request: Any, text: Any) -> tuple[Any, Any]:
        try:
            return {'content': csv_of(live, request or {}, text), **_FILE}, ''
        except UserError as error:
            return no_update, widgets.problem(error)


def _follow(app: Dash) -> None:
    """Adds the callbacks in the browser by which table and address follow each other."""

    def function(name: str) -> ClientsideFunction:
        return ClientsideFunction('trials', name)

    search = State('url', 'search')
    app.clientside_callback(
        function('write'),
        Output('url', 'search', allow_duplicate=True),
        Input('trials', 'getRowsRequest'),
        Input('filter', 'value'),
        Input('columns', 'value'),
        State('columns-first', 'data'),
        search,
        prevent_initial_call=True,
    )
    app.clientside_callback(
        function('select'),
        Output('url', 'search', allow_duplicate=True),
        Input('trials', 'cellValueChanged'),
        search,
        prevent_initial_call=True,
    )
    app.clientside_callback(
        function('show'),
        Output('trials-visible', 'data'),  # The callback is one of this view.
        Input('url', 'search'),
        Input('version', 'data'),
        State('columns', 'value'),
        State('filter', 'value'),
        State('columns-first', 'data'),
        prevent_initial_call=True,
    )


def csv_of(live: LiveStudy, request: dict[str, Any], text: Any) -> str:
    """Makes the whole table as CSV: all columns of the trials that it has, in its order.

    Args:
        live: the study.
        request: of the grid for rows: their order, and the filters of columns.
        text: the filter above the table.

    Raises:
        UserError: the study has no such column.
    """
    columns = _columns(live)
    found = [row_of(trial, columns) for trial in _found(live, request, text)]
    return to_csv(found, [each.key for each in columns])


def _columns(live: LiveStudy) -> list[Column]:
    def columns() -> list[Column]:
        snapshot = live.snapshot()
        return rows.columns_of(live.study, snapshot.trials, snapshot.record.notes)

    found: list[Column] = live.computed('columns', columns)
    return found


def _found(live: LiveStudy, request: dict[str, Any], text: Any) -> Sequence[Trial]:
    """Returns the trials that the filters find, in order."""
    columns = _columns(live)
    order = rows.order_of(request.get('sortModel') or [])
    terms = rows.parse_filter(text if isinstance(text, str) else '', columns)
    terms += rows.terms_of(request.get('filterModel'), columns)

    def found() -> Sequence[Trial]:
        trials = live.snapshot().trials
        return rows.sorted_by(rows.found_in(trials, columns, terms), columns, order)

    trials: Sequence[Trial] = live.computed(('found', order, tuple(terms)), found)
    return trials


def _block(
    live: LiveStudy, request: dict[str, Any], text: Any, visible: Any, search: Any
) -> tuple[dict[str, Any], str]:
    """Makes the rows that the grid asks for, and the label of the table."""
    start, end = (request.get(name) for name in ('startRow', 'endRow'))
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start <= end:
        raise UserError('the rows of the table: expected the request of a grid')
    trials, columns = live.snapshot().trials, _columns(live)
    found = _found(live, request, text)
    names = (
        {each for each in visible if isinstance(each, str)} if isinstance(visible, list) else set()
    )
    texts = {e: rows.text_of(e, trials)[1] for e in columns if e.key in names and e.key != 'trial'}
    selected = {*figures.selected_trials(live, Link.parse(search))}
    made = [
        {
            'id': str(trial.id),
            'trial': trial.id,
            'chosen': trial.id in selected,
            **{each.key: text(each.value(trial)) for each, text in texts.items()},
        }
        for trial in found[start : min(end, start + _MAX_BLOCK)]
    ]
    label = f'{len(found):,} of {len(trials):,} trials'
    return {'rowData': made, 'rowCount': len(found)}, label


VIEW = View('/trials', layout, register, 'Trials')
