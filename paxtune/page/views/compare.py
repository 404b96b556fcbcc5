"""The comparison of two trials: the symbolic difference of their experiments, and their layers."""

from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from paxtune.page import widgets
from paxtune.page.live import LiveStudy
from paxtune.page.view import Page, View
from paxtune.reports.model_tables import changed_tables
from paxtune.reports.study_tables import difference, difference_tables
from trainer.symbolic.errors import UserError


def layout(live: LiveStudy, left: int | None, right: int | None) -> list[Any]:
    """Makes the view of two trials, which may be chosen in it."""
    return [
        html.H2('Compare two trials'),
        html.Div(
            [
                dcc.Input(id='left', type='number', min=1, step=1, value=left, debounce=True),
                dcc.Input(id='right', type='number', min=1, step=1, value=right, debounce=True),
                html.Button('Compare', id='compare'),
            ],
            className='form',
        ),
        dcc.Loading(html.Div(id='difference')),
    ]


def register(app: Dash, page: Page) -> None:
    """Adds the callback of the view."""
    live, commands = page.live, page.commands

    @app.callback(
        Output('difference', 'children'),
        Input('compare', 'n_clicks'),
        State('left', 'value'),
        State('right', 'value'),
    )
    @widgets.guarded
    def compare(clicks: int | None, left: int | None, right: int | None) -> Any:
        if left is None or right is None:
            if not clicks:
                return no_update
            raise UserError('expected the numbers of two trials')
        if live.study.space.is_tunable:
            return _of_experiments(commands.difference(left, right))
        return widgets.document(difference(live.study, left, right))


def _of_experiments(found: dict[str, Any]) -> list[Any]:
    left, right = (found[side]['trial'] for side in ('left', 'right'))
    tables = difference_tables(found)
    parts: list[Any] = []
    for model in found.get('architecture', []):
        of = f' of {model["sub_experiment"]}' if model['sub_experiment'] else ''
        if 'problem' in model:
            parts.append(widgets.problem(f'Architecture{of}: {model["problem"]}'))
            continue
        tables += changed_tables(model, left, right)
    if not found['differences']:
        parts.append(widgets.remark('Their experiments are equal.'))
    return [*map(widgets.table, tables), *parts]


VIEW = View('/compare', layout, register, 'Compare', numbers=r'(?:/(\d{1,9}))?(?:/(\d{1,9}))?')
