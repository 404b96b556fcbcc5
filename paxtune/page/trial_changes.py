"""Changes on the view of a trial: stop, repeat, report a result, delete."""

from collections.abc import Callable
from typing import Any

from dash import Dash, Input, Output, State, dcc, html

from paxtune.page import widgets
from paxtune.page.actions import Actions
from paxtune.page.live import LiveStudy
from paxtune.study import transitions
from trainer.symbolic.errors import UserError

_HIDDEN = {'display': 'none'}


def elements() -> list[Any]:
    """Makes the elements of the changes, and below them the element of their results."""
    return [
        html.H3('Change'),
        html.Div(
            [
                html.Button('Stop this trial', id='stop'),
                html.Button('Repeat this trial', id='retry'),
            ],
            className='form',
        ),
        html.Div(_result_form(), id='result-form', style=_HIDDEN),
        html.Details(
            [
                html.Summary('Delete this trial'),
                html.P('This deletes its measurements, its files and its checkpoints for good.'),
                html.Button('Delete it for good', id='delete', className='danger'),
            ],
        ),
        dcc.Loading(html.Div(id='trial-done', className='done', role='status')),
    ]


def _result_form() -> list[Any]:
    lines = dcc.Textarea(id='result-metrics', placeholder='METRIC=VALUE, one on each line')
    reason = dcc.Input(id='result-reason', type='text', placeholder='why there is no result')
    given = widgets.labelled('Metrics of the result', lines)
    why = widgets.labelled('Reason why there is none', reason)
    return [
        widgets.remark('This trial waits for its result.'),
        html.Div([given, html.Button('Report the result', id='tell')], className='form'),
        html.Div(
            [why, html.Button('Report as infeasible', id='tell-infeasible')], className='form'
        ),
    ]


def register(app: Dash, live: LiveStudy, actions: Actions) -> None:
    """Adds the callbacks of the changes."""

    def action(button: str, act: Callable[..., str], *given: State) -> None:
        def on_trial(path: str, *values: str | None) -> str:
            return act(widgets.trial_at(path), *(each or '' for each in values))

        widgets.on_click(app, button, 'trial-done', on_trial, widgets.PATH, *given)

    action('stop', actions.stop)
    action('retry', actions.retry)
    action('delete', actions.delete)
    action('tell', actions.tell, State('result-metrics', 'value'))
    action('tell-infeasible', actions.tell_infeasible, State('result-reason', 'value'))

    @app.callback(
        Output('result-form', 'style'), Input('version', 'data'), State('url', 'pathname')
    )
    def show_form(version: str, path: str) -> dict[str, str]:
        try:
            trial = live.study.trial(widgets.trial_at(path))
        except UserError:  # The view says so.
            return _HIDDEN
        waits = trial.status.is_open and transitions.is_outside(trial.record.holder)
        return {} if waits else _HIDDEN
