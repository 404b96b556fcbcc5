"""Changes on the view of a trial: stop, repeat, report a result, delete."""

from collections.abc import Callable
from typing import Any, TypeAlias

from dash import Dash, Input, Output, State, dcc, html

from paxtune.page import widgets
from paxtune.page.actions import Actions
from paxtune.page.live import LiveStudy
from paxtune.study import transitions
from trainer.symbolic.errors import UserError

Callback: TypeAlias = Callable[..., Any]

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

    def action(button: str, *states: State) -> Callable[[Callback], Callback]:
        decorator: Callable[[Callback], Callback] = app.callback(
            Output('trial-done', 'children', allow_duplicate=True),
            Input(button, 'n_clicks'),
            State('url', 'pathname'),
            *states,
            prevent_initial_call=True,
        )
        return decorator

    @action('stop')
    @widgets.guarded
    def stop(clicks: int, path: str) -> Any:
        return html.Pre(actions.stop(widgets.trial_at(path)))

    @action('retry')
    @widgets.guarded
    def retry(clicks: int, path: str) -> Any:
        return html.Pre(actions.retry(widgets.trial_at(path)))

    @action('delete')
    @widgets.guarded
    def delete(clicks: int, path: str) -> Any:
        return html.Pre(actions.delete(widgets.trial_at(path)))

    @action('tell', State('result-metrics', 'value'))
    @widgets.guarded
    def tell(clicks: int, path: str, metrics: str | None) -> Any:
        return html.Pre(actions.tell(widgets.trial_at(path), metrics or ''))

    @action('tell-infeasible', State('result-reason', 'value'))
    @widgets.guarded
    def tell_infeasible(clicks: int, path: str, reason: str | None) -> Any:
        return html.Pre(actions.tell_infeasible(widgets.trial_at(path), reason or ''))

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
