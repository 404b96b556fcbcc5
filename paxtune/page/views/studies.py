"""The views of a directory of studies: their list, and the best so far of several."""

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import parse_qs, quote

from dash import Dash, Input, Output, State, dcc, html, no_update

from paxtune import plots
from paxtune.page import figures, widgets
from paxtune.page.links import Link
from paxtune.page.view import View
from paxtune.plots import layout
from paxtune.reports.tables import cell
from paxtune.study.record import Status
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.page.live_studies import LiveStudies

_Unit: TypeAlias = Literal['trials', 'hours']

_MAX_COMPARED = 8
_COMPARED_AT_FIRST = 5

_COLUMNS = {
    'study': 'study', 'state': 'state', 'progress': 'progress', 'best': 'best', 'front': 'front',
    'changed': 'last activity', 'experiment': 'experiment', 'problem': 'problem',
}  # fmt: skip


def _listed(studies: 'LiveStudies', link: Link) -> list[Any]:
    return [html.H2('Studies'), html.Div(id='studies-live')]


def _register_list(app: Dash, studies: 'LiveStudies') -> None:
    def rendered() -> Any:
        rows = studies.rows()
        if not rows:
            return widgets.remark(
                f'There are no studies in {studies.root} and below yet. Those that appear later '
                'appear here.'
            )
        now = datetime.datetime.now(datetime.UTC)
        made = [_cells(studies, key, rows[key], now) for key in _newest_first(rows)]
        used = [key for key in _COLUMNS if any(row[key] for row in made)]
        return widgets.grid(made, {key: _COLUMNS[key] for key in used}, id='studies')

    widgets.follow(app, 'studies-live', rendered)


def _cells(
    studies: 'LiveStudies', key: str, row: Mapping[str, Any], now: datetime.datetime
) -> dict[str, Any]:
    name = studies.name_of(key)
    changed = row['changed']
    return {
        'study': name if row['problem'] else html.A(name, href=widgets.address(f'/study/{key}/')),
        'state': state_of(row),
        'progress': _progress(row, name),
        'best': row['best'],
        'front': row['front'],
        'changed': changed and html.Time(
            f'{widgets.span((now - changed).total_seconds())} ago',
            dateTime=changed.isoformat(),
            title=f'{changed.astimezone():%Y-%m-%d %H:%M:%S}',
        ),
        'experiment': row['experiment'],
        'problem': row['problem'] and widgets.encodable(row['problem']),
    }  # fmt: skip


def state_of(row: Mapping[str, Any]) -> str:
    """Returns the state of a study of a row of `studies list`.

    Example:
        >>> state_of({'problem': None, 'trials': 3, 'done': False, 'active': 2})
        'active'
    """
    if row['problem']:
        return 'damaged'
    if row['trials'] is None:
        return 'reading'
    if row['done']:
        return 'completed'
    return 'active' if row['active'] else 'paused' if row['paused'] else 'idle'


def _progress(row: Mapping[str, Any], name: str) -> Any:
    if row['trials'] is None:
        return None
    total, ended = row['num_trials'], sum(row[how] for how in Status if how.has_ended)
    if not total:
        return f'{ended:,} trials'
    label = f'{ended:,} of {total:,}'
    bar = widgets.bar(ended, total, f'Ended trials of {name}')
    return html.Div([bar, html.Span(label)], className='progress')


def _newest_first(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    oldest = datetime.datetime.min.replace(tzinfo=datetime.UTC)
    return sorted(rows, key=lambda key: rows[key]['changed'] or oldest, reverse=True)


def _comparison(studies: 'LiveStudies', link: Link) -> list[Any]:
    choice = dcc.Checklist(_options(studies), id='compared', inline=True)
    return [
        html.H2('Compare studies'),
        widgets.remark(
            f'The best value so far, for at most {_MAX_COMPARED} studies of one reward.'
        ),
        html.Fieldset([html.Legend('Studies'), choice]),
        html.Div([figures.graph(name) for name in _FIGURES], className='columns'),
        html.Div(id='compared-remark', role='status'),
    ]


_FIGURES: dict[str, _Unit] = {'best-by-trials': 'trials', 'best-by-hours': 'hours'}


def _options(studies: 'LiveStudies') -> list[dict[str, str]]:
    rows = studies.rows()
    names = sorted((studies.name_of(key), key) for key in rows if not rows[key]['problem'])
    return [{'label': name, 'value': key} for name, key in names]


def _register_comparison(app: Dash, studies: 'LiveStudies') -> None:
    @app.callback(
        Output('compared', 'options'),
        Output('compared', 'value'),
        Input('version', 'data'),
        State('compared', 'value'),
        State('url', 'search'),
    )
    def choose(version: str, chosen: Any, search: Any) -> Any:
        options = _options(studies)
        known = {each['value'] for each in options}
        if chosen is not None:
            return options, no_update
        given = parse_qs(str(search or '').lstrip('?')).get('studies', [''])[0].split(',')
        return options, [each for each in given if each in known] or _at_first(studies)

    @app.callback(
        Output('url', 'search'), Input('compared', 'value'), State('url', 'search'),
        prevent_initial_call=True,
    )  # fmt: skip
    def share(chosen: Any, search: Any) -> Any:
        made = f'?studies={quote(",".join(_keys(chosen)), safe=",:~")}'
        return no_update if made == search else made

    @app.callback(
        Output('compared-remark', 'children'), Input('version', 'data'), Input('compared', 'value')
    )
    @widgets.guarded
    def explain(version: str, chosen: Any) -> Any:
        return [widgets.remark(each) for each in _fitting(studies, _keys(chosen))[1]]

    for name, unit in _FIGURES.items():
        _register_figure(app, studies, name, unit)


def _register_figure(app: Dash, studies: 'LiveStudies', name: str, unit: _Unit) -> None:
    @app.callback(
        Output(f'figure-{name}', 'figure'),
        Output(f'drawn-{name}', 'data'),
        Input('version', 'data'),
        Input('compared', 'value'),
        State(f'drawn-{name}', 'data'),
    )
    def refresh(version: str, chosen: Any, known: str | None) -> Any:
        keys = _keys(chosen)
        return figures.drawn(
            studies, (name, *keys), lambda: _best_so_far(studies, keys, unit), known
        )


def _keys(chosen: Any) -> list[str]:
    """The studies that a browser has chosen: it may send anything."""
    given = chosen if isinstance(chosen, list) else []
    return [each for each in given if isinstance(each, str)][:_MAX_COMPARED]


def _at_first(studies: 'LiveStudies') -> list[str]:
    rows = studies.rows()
    found = [key for key in _newest_first(rows) if rows[key]['best'] is not None]
    return _fitting(studies, found[:_COMPARED_AT_FIRST])[0]


def _best_so_far(studies: 'LiveStudies', keys: Sequence[str], unit: _Unit) -> 'go.Figure':
    fitting, _ = _fitting(studies, keys)
    if not fitting:
        return layout.empty('Choose studies above.')
    with contextlib.ExitStack() as stack:
        opened = {key: stack.enter_context(studies.opened(key)) for key in fitting}
        named = {studies.name_of(key): each.live.study for key, each in opened.items()}
        return plots.best_so_far(named, x=unit)


def _fitting(studies: 'LiveStudies', keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """The studies that have the reward of the first one; and why others are left out."""
    fitting, remarks, wanted = list[str](), list[str](), None
    for key in keys:
        try:
            with studies.opened(key) as opened:
                rewards = [(each.label, each.goal) for each in opened.live.study.rewards]
        except UserError as error:
            remarks.append(str(error))
            continue
        wanted = wanted or rewards[:1]
        if rewards[:1] == wanted and rewards:
            fitting.append(key)
        else:
            own = cell(rewards[0][0]) if rewards else 'no reward'
            remarks.append(f'{studies.name_of(key)} is left out: it has {own}.')
    return fitting, remarks


VIEWS = (
    View('/', _listed, _register_list, 'Studies'),
    View('/compare', _comparison, _register_comparison, 'Compare'),
)
"""The views, in the order of the navigation."""
