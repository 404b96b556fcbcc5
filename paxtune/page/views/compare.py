"""The comparison of trials: values that differ, curves; of two also experiments and layers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, State, dcc, html, no_update, set_props

from paxtune.analysis.trial_values import STEP
from paxtune.page import choices, figures, rows, widgets
from paxtune.page.links import BEST, Link, selected
from paxtune.page.live import LiveStudy
from paxtune.page.view import Page, View
from paxtune.plots.learning_curves import compared_curves
from paxtune.reports.model_tables import changed_tables
from paxtune.reports.study_tables import difference_tables
from paxtune.study.columns import reward_columns
from paxtune.study.trial import Trial
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go


def layout(live: LiveStudy, link: Link) -> list[Any]:
    """Makes the view of the trials that an address selects."""
    numbers = dcc.Input(
        id='compared', type='text', value=_text(link), debounce=True, placeholder=f'3, 7, {BEST}'
    )
    return [
        html.H2('Compare trials'),
        widgets.remark(
            f'Numbers of trials, and “{BEST}”; the boxes of the table select them, too.'
        ),
        html.Div(widgets.labelled('Trials', numbers), className='form wide'),
        html.Div(id='compare-problem'),
        dcc.Loading(html.Div(id='difference')),
        *choices.elements(live, link, figures.CURVE),
        figures.graph('compared'),
    ]


def register(app: Dash, page: Page) -> None:
    """Adds the callbacks of the view."""
    live, commands = page.live, page.commands

    @app.callback(
        Output('url', 'search', allow_duplicate=True),
        Output('compare-problem', 'children'),
        Input('compared', 'value'),
        State('url', 'search'),
        prevent_initial_call=True,
    )
    def choose(text: Any, search: str) -> Any:
        try:
            link, chosen = Link.parse(search), selected(str(text or ''))
            is_new = chosen != link.selected
        except UserError as error:
            return no_update, widgets.problem(error)
        return link.with_selected(chosen) if is_new else no_update, ''

    @app.callback(
        Output('difference', 'children'), Input('url', 'search'), State('compared', 'value')
    )
    @widgets.guarded
    def compare(search: str, text: Any) -> Any:
        link = Link.parse(search)
        if _text(link) != text:  # The address has changed: the browser went back.
            set_props('compared', {'value': _text(link)})
        trials = chosen_trials(live, link)
        if len(trials) < 2:
            return widgets.remark('Select two trials or more.')
        parts = _values(live, trials)
        if len(trials) == 2 and live.study.space.is_tunable:
            parts += _of_experiments(commands.difference(*(each.id for each in trials)))
        return parts

    figures.register_curves(app, live, 'compared', _curves)


def _curves(live: LiveStudy, trials: Sequence[int], chosen: figures.Chosen) -> 'go.Figure':
    if not trials:
        raise UserError('Select trials to see their learning curves.')
    over = chosen['curves_over'] or STEP
    return compared_curves(live.study, trials, chosen['reward'], over)


def _text(link: Link) -> str:
    return ', '.join(map(str, link.selected))


def chosen_trials(live: LiveStudy, link: Link) -> list[Trial]:
    """Returns the trials that an address selects; raises UserError if one is missing."""
    return list({each.id: each for each in map(live.study.trial, link.selected)}.values())


def _values(live: LiveStudy, trials: list[Trial]) -> list[Any]:
    """Makes the table of the values that differ, a column for each trial."""
    snapshot = live.snapshot()
    known = rows.columns_of(live.study, trials, snapshot.record.notes)
    # The metric of a reward would be there twice.
    twice = {'trial', *(f'metrics.{name}' for name in reward_columns(live.study.rewards))}
    table, same = rows.compared([each for each in known if each.key not in twice], trials)
    names = {'': '', **{str(each.id): f'trial {each.id}' for each in trials}}
    made = widgets.grid(
        table,
        names,
        lambda key: widgets.trial_link(int(key)) if key else '',
        className='vertical',
    )
    return [made, widgets.remark(f'The same in all: {", ".join(same)}')] if same else [made]


def _of_experiments(found: dict[str, Any]) -> list[Any]:
    left, right = (found[side]['trial'] for side in ('left', 'right'))
    tables = difference_tables(found)[1:]
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


VIEW = View('/compare', layout, register, 'Compare')
