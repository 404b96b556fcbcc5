"""The overview: budget, states, best trials, running trials, faults."""

import contextlib
import datetime
from collections import Counter
from typing import Any

from dash import Dash, Input, Output, State, dcc, html

from paxtune.page import choices, figure_views, figures, note, widgets
from paxtune.page.actions import Actions
from paxtune.page.live import LiveStudy
from paxtune.reports.study_tables import summary
from paxtune.reports.tables import Row, Table
from paxtune.service.leases import process_of
from paxtune.study.record import Status
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import attempt_directory
from trainer.runtime.metrics_file import METRICS, last_training_record
from trainer.symbolic.errors import UserError

_RUNNING = (
    'trial', 'state', 'worker', 'attempt', 'step', 'reward', 'train/loss', 'steps/s', 'last event',
    'seconds ago',
)  # fmt: skip
_MOST_RUNNING = 100


def layout(live: LiveStudy) -> list[Any]:
    """Makes the view; what changes is filled in by callbacks."""
    return [
        note.rendered(),
        html.Div(id='overview-live'),
        *choices.elements(live, ['reward']),
        figures.graph(figure_views.HISTORY.name),
        html.Div(id='overview-tables'),
        html.H3('Note on the study'),
        note.form(live, None),
        html.H3('Change'),
        html.Button('Pause the search', id='pause'),
        html.Div(
            [
                dcc.Textarea(id='add-decisions', placeholder='PATH=VALUE, one on each line'),
                html.Button('Add a trial', id='add'),
            ],
            className='form',
        ),
        dcc.Loading(html.Div(id='overview-done', className='done')),
    ]


def prepare(live: LiveStudy) -> None:
    """Computes the view before a browser asks for it. An error is left for the view to show."""
    with contextlib.suppress(UserError):
        layout(live)
        live.computed('overview', lambda: _parts(live))
        figures.prepare(live, figure_views.HISTORY)


def register(app: Dash, live: LiveStudy, actions: Actions) -> None:
    """Adds the callbacks of the view."""

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
    """Makes what stands above the optimization history, and what stands below."""
    study, trials = live.study, live.snapshot().trials
    counts = Counter(trial.status for trial in trials)
    page = summary(study)
    best = page.data['best']
    running = [trial for trial in trials.unended if trial.status.is_open]
    named = {name: counts[name] for name in Status if counts[name]}
    faults = sum(each.record.failures.faults + each.record.failures.losses for each in trials)
    numbers = widgets.facts(
        [
            ('ended trials', sum(count for name, count in counts.items() if name.has_ended)),
            ('in all', study.num_trials if page.data['budgets'][0]['limit'] else None),
            *((str(name), count) for name, count in named.items()),
            ('workers', len({process_of(each.record.holder) for each in running} - {''})),
            ('lost or failed attempts', faults),
            *(_best(study, best[0]) if best else []),
        ]
    )
    table = Table(running_rows(study, running[:_MOST_RUNNING]), _RUNNING, 'Running trials')
    state = [] if page.data['done'] is None else [widgets.remark(f'Done: {page.data["done"]}')]
    if live.snapshot().record.pause_requested:
        state.append(widgets.remark('A pause was requested.'))
    return [numbers, *state, widgets.table(table, id='running')], widgets.document(page)


def _best(study: Any, row: Row) -> list[tuple[str, Any]]:
    if len(study.rewards) > 1:
        return [('trials that no other is better than', len(study.pareto_front))]
    label = study.rewards[0].label if study.rewards else ''
    return [('best trial', row['trial']), (f'best {label}', row.get(label))]


def running_rows(study: Any, running: list[Trial]) -> list[Row]:
    """Makes a row for each trial that has begun and not ended."""
    now = datetime.datetime.now(datetime.UTC)
    return [_running_row(study, trial, now) for trial in running]


def _running_row(study: Any, trial: Trial, now: datetime.datetime) -> Row:
    last = trial.measurements[-1] if trial.measurements else None
    events = trial.record.history
    training = {}
    if study.directory is not None:
        file = attempt_directory(study.directory, trial) / METRICS
        training = last_training_record(file) or {}
    return {
        'trial': trial.id,
        'state': trial.status,
        'worker': trial.record.holder or '(waits for one)',
        'attempt': trial.attempt,
        'step': training.get('step', last.step if last else 0),
        'reward': ', '.join(f'{reward:.6g}' for reward in last.rewards) if last else '',
        'train/loss': training.get('train/loss'),
        'steps/s': training.get('train/steps_per_second'),
        'last event': events[-1].event if events else '',
        # Clocks of two machines may differ.
        'seconds ago': max(0, round((now - events[-1].time).total_seconds())) if events else None,
    }
