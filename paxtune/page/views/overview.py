"""The overview: budget, states, best trials, running trials, faults."""

import contextlib
from typing import Any

import flask
from dash import Dash, Input, Output, State, dcc, html

from paxtune import plots
from paxtune.page import choices, figures, note, widgets
from paxtune.page.figures import Panel, of_study
from paxtune.page.live import LiveStudy
from paxtune.page.view import Page, View
from paxtune.reports.running_trials import running_rows
from paxtune.reports.study_tables import summary
from paxtune.reports.tables import Row, Table
from paxtune.service.leases import process_of
from paxtune.study.record import Status
from trainer.symbolic.errors import UserError

_RUNNING = (
    'trial', 'state', 'worker', 'attempt', 'step', 'reward', 'train/loss', 'steps/s', 'last event',
    'seconds ago',
)  # fmt: skip
_MAX_RUNNING = 100
HISTORY = Panel('history', of_study(plots.history))


def layout(live: LiveStudy) -> list[Any]:
    """Makes the view; callbacks fill in live content."""
    return [
        note.rendered(),
        html.Div(id='overview-live'),
        *choices.elements(live, ['reward']),
        figures.graph(HISTORY.name),
        html.Div(id='overview-tables'),
        html.H3('Note on the study'),
        note.form(live, None),
        html.H3('Change'),
        html.Button('Pause the search', id='pause'),
        html.Div(
            [
                dcc.Textarea(
                    id='add-decisions', placeholder='PATH=VALUE for each decision, one on each line'
                ),
                html.Button('Add a trial', id='add'),
            ],
            className='form',
        ),
        dcc.Loading(html.Div(id='overview-done', className='done')),
    ]


def prepare(live: LiveStudy, server: flask.Flask, base_path: str) -> None:
    """Computes the view before a browser asks for it. An error is left for the view to show."""
    request = server.test_request_context('/', base_url=f'http://localhost{base_path}')
    with request, contextlib.suppress(UserError):
        layout(live)
        live.computed('overview', lambda: _parts(live))
        figures.prepare(live, HISTORY)


def register(app: Dash, page: Page) -> None:
    """Adds the callbacks of the view."""
    live, actions = page.live, page.actions
    figures.register(app, live, [HISTORY])

    @app.callback(Output('overview-live', 'children'), Input('version', 'data'))
    @widgets.guarded
    def refresh(version: str) -> list[Any]:
        parts: list[Any] = live.computed('overview', lambda: _parts(live))[0]
        return parts

    @app.callback(Output('overview-tables', 'children'), Input('version', 'data'))
    @widgets.guarded
    def tables(version: str) -> list[Any]:
        parts: list[Any] = live.computed('overview', lambda: _parts(live))[1]
        return parts

    @app.callback(
        Output('overview-done', 'children'),
        Input('pause', 'n_clicks'),
        prevent_initial_call=True,
    )
    @widgets.guarded
    def pause(clicks: int) -> Any:
        return html.Pre(actions.pause())

    @app.callback(
        Output('overview-done', 'children', allow_duplicate=True),
        Input('add', 'n_clicks'),
        State('add-decisions', 'value'),
        prevent_initial_call=True,
    )
    @widgets.guarded
    def add(clicks: int, decisions: str | None) -> Any:
        return html.Pre(actions.add(decisions or ''))


def _parts(live: LiveStudy) -> tuple[list[Any], list[Any]]:
    """Makes the elements above the optimization history, and the elements below it."""
    study, state = live.study, live.snapshot()
    page = summary(study)
    best = page.data['best']
    named = {name: state.counts[name] for name in Status if state.counts.get(name)}
    failures = [trial.record.failures for trial in state.trials]
    workers = {process_of(each.trial.record.holder) for each in state.running} - {''}
    total = f' of {study.num_trials}' if page.data['budgets'][0]['limit'] else ''
    # Where all have ended the same way, one number says so.
    same = {name for name in named if name.has_ended and named[name] == state.num_ended}
    numbers = widgets.facts(
        [
            (f'{next(iter(same), "ended")} trials', f'{state.num_ended}{total}'),
            *((str(name), count) for name, count in named.items() if name not in same),
            ('workers', len(workers)),
            ('lost or failed attempts', sum(each.faults + each.losses for each in failures)),
            *(_best(study, best[0]) if best else []),
        ]
    )
    table = Table(running_rows(state.running[:_MAX_RUNNING], state.now), _RUNNING, 'Running trials')
    remarks = [] if page.data['done'] is None else [widgets.remark(f'Done: {page.data["done"]}')]
    if state.record.pause_requested:
        remarks.append(widgets.remark('A pause was requested.'))
    return [numbers, *remarks, widgets.table(table, id='running')], widgets.document(page)


def _best(study: Any, row: Row) -> list[tuple[str, Any]]:
    if len(study.rewards) > 1:
        return [('trials that no other is better than', len(study.pareto_front))]
    label = study.rewards[0].label if study.rewards else ''
    return [('best trial', row['trial']), (f'best {label}', row.get(label))]


VIEW = View('/', layout, register, 'Overview')
