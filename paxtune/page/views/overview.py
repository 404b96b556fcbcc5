"""The overview: progress, the best trial, the figure of all trials, running trials, faults."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import flask
from dash import Dash, State, dcc, html

from paxtune import plots
from paxtune.analysis.study_state import StudyState
from paxtune.page import choices, figures, note, widgets
from paxtune.page.figures import Panel, of_study
from paxtune.page.links import Link
from paxtune.page.live import LiveStudy
from paxtune.page.view import Page, View
from paxtune.reports.running_trials import running_rows
from paxtune.reports.study_parts import train_command
from paxtune.reports.study_tables import best_tables, best_trials, summary
from paxtune.reports.tables import Table
from paxtune.service.leases import process_of
from paxtune.study.record import Status
from trainer.symbolic.errors import UserError

_RUNNING = (
    'trial', 'state', 'worker', 'attempt', 'step', 'reward', 'train/loss', 'steps/s', 'last event',
    'seconds ago',
)  # fmt: skip
_MAX_RUNNING = 100
HISTORY = Panel(
    'history',
    of_study(plots.history, over='history_over'),
    ('reward', 'history_over', *figures.LOOK),
)


def layout(live: LiveStudy, link: Link) -> list[Any]:
    """Makes the view; callbacks fill in live content."""
    history = html.Div(
        [*choices.elements(live, link, HISTORY.choices), figures.graph(HISTORY.name)]
    )
    return [
        html.H2('Overview'),
        note.rendered(),
        html.Div(id='overview-live'),
        html.Div([history, html.Div(id='overview-best')], className='columns'),
        html.Div(id='overview-running'),
        html.Div(id='overview-tables', className='tiles'),
        html.H3('Note on the study'),
        note.form(live, None),
        html.H3('Change'),
        html.Button('Pause the search', id='pause'),
        html.Div(
            [
                widgets.labelled(
                    'Decisions of a trial to add',
                    dcc.Textarea(id='add-decisions', placeholder='PATH=VALUE, one on each line'),
                ),
                html.Button('Add a trial', id='add'),
            ],
            className='form',
        ),
        dcc.Loading(html.Div(id='overview-done', className='done', role='status')),
    ]


def prepare(live: LiveStudy, server: flask.Flask, base_path: str) -> None:
    """Computes the view before a browser asks for it. An error is left for the view to show."""
    request = server.test_request_context('/', base_url=f'http://localhost{base_path}')
    with request, contextlib.suppress(UserError):
        layout(live, Link())
        for name in _PARTS:
            _part(live, name)
        figures.prepare(live, HISTORY)


def register(app: Dash, page: Page) -> None:
    """Adds the callbacks of the view."""
    live, actions = page.live, page.actions
    figures.register(app, live, [HISTORY])
    for name in _PARTS:
        widgets.follow(app, f'overview-{name}', functools.partial(_part, live, name))

    widgets.on_click(app, 'pause', 'overview-done', actions.pause)
    decisions = State('add-decisions', 'value')
    widgets.on_click(app, 'add', 'overview-done', lambda given: actions.add(given or ''), decisions)


def _part(live: LiveStudy, name: str) -> Any:
    return live.computed(f'overview-{name}', functools.partial(_PARTS[name], live))


def _numbers(live: LiveStudy) -> list[Any]:
    """The numbers above all else, from the records alone: they follow a search of many trials."""
    state = live.snapshot()
    named = {name: state.counts[name] for name in Status if state.counts.get(name)}
    failures = [trial.record.failures for trial in state.trials]
    lost = sum(each.faults + each.losses for each in failures)
    workers = {process_of(name) for name in state.workers}
    ended = {name: count for name, count in named.items() if name.has_ended}
    # One number says all where all have ended the same way.
    kinds = [*(ended if len(ended) > 1 else []), *(name for name in named if not name.has_ended)]
    is_done = state.is_done
    left = None if is_done or state.seconds_left is None else widgets.span(state.seconds_left)
    numbers = [
        *_best(live, state),
        (f'{next(iter(ended)) if len(ended) == 1 else "ended"} trials', _progress(state)),
        ('left, about', left),
        *((str(name), f'{named[name]:,}') for name in kinds),
        ('worker' if len(workers) == 1 else 'workers', len(workers) or None),
        ('lost or failed attempts', lost or None),
    ]
    remarks = [widgets.remark('Done.')] if is_done else []
    if state.record.pause_requested:
        remarks.append(widgets.remark('A pause was requested.'))
    return [widgets.facts(numbers), *remarks]


def _best(live: LiveStudy, state: StudyState) -> list[tuple[str, Any]]:
    if state.front is not None:
        return [('trials that no other is better than', state.front)]
    if state.best is None:
        return []
    label = live.study.rewards[0].label if live.study.rewards else 'reward'
    number = state.best.trial.id
    link = widgets.trial_link(number, f'trial {number}')
    return [(f'best {label}', [widgets.text(state.best.rewards[0]), ' ', html.Small(link)])]


def _progress(state: StudyState) -> Any:
    if not state.num_trials:
        return f'{state.num_ended:,}'
    return [
        f'{state.num_ended:,} of {state.num_trials:,}',
        widgets.bar(state.num_ended, state.num_trials, 'Ended trials'),
    ]


def _best_trial(live: LiveStudy) -> list[Any]:
    study = live.study
    best = best_trials(study)
    if not best:
        return []
    tables = best_tables(study, best, is_exact=False)
    if len(study.rewards) > 1:
        return [*map(widgets.table, tables)]
    title = html.H3(['Best trial: ', widgets.trial_link(best[0].id)])
    parts: list[Any] = [title, *map(widgets.table, tables)]
    if command := train_command(study, best[0]):
        parts += [html.H4('To train it'), html.Pre(command, className='command', tabIndex='0')]
    return parts


def _running(live: LiveStudy) -> Any:
    state = live.snapshot()
    rows = running_rows(state.running[:_MAX_RUNNING], state.now)
    return widgets.table(Table(rows, _RUNNING, 'Running trials'), id='running')


def _tables(live: LiveStudy) -> list[Any]:
    return widgets.document(summary(live.study, has_best=False))


_PARTS: dict[str, Callable[[LiveStudy], Any]] = {
    'live': _numbers,
    'best': _best_trial,
    'running': _running,
    'tables': _tables,
}
"""The parts of the view that follow the study, by the ends of their ids."""

VIEW = View('/', layout, register, 'Overview')
