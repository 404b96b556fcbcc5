"""The view of one trial: state, history, curve, note, changes, architecture, log."""

import bisect
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, dcc, html

from paxtune.analysis.trial_values import STEP
from paxtune.page import choices, figures, file_views, note, trial_changes, widgets
from paxtune.page.links import BEST, Link
from paxtune.page.live import LiveStudy
from paxtune.page.view import Page, View
from paxtune.plots.learning_curves import trial_curve
from paxtune.reports.model_tables import architecture_table
from paxtune.reports.study_tables import facts_of
from paxtune.reports.tables import Table
from paxtune.study.columns import reward_columns
from paxtune.study.worker_logs import lines_about

if TYPE_CHECKING:
    import plotly.graph_objects as go


def layout(live: LiveStudy, link: Link, number: int) -> list[Any]:
    """Makes the view; callbacks fill in live content. Raises UserError without a trial."""
    live.study.trial(number)
    parts: list[Any] = [
        html.H2(f'Trial {number}'),
        html.Div(_neighbours(live, link, number), className='choices'),
        *choices.elements(live, link, figures.CURVE),
        figures.graph('trial'),
        html.Div(id='trial-live'),
        html.H3('Note'),
        note.rendered(),
        note.form(live, number),
        *trial_changes.elements(),
    ]
    if live.study.space.is_tunable:
        parts += [html.H3('Architecture'), dcc.Loading(html.Div(id='architecture'))]
    return [*parts, *file_views.elements(), html.H3('Log'), html.Div(id='trial-log')]


def _neighbours(live: LiveStudy, link: Link, number: int) -> list[Any]:
    """Links to the trials before and after, and to comparisons."""
    ids = [each.id for each in live.snapshot().trials]
    place = bisect.bisect_left(ids, number)
    before, after = ids[:place][-1:], [each for each in ids[place : place + 2] if each != number]
    query = link.with_selected(link.selected)
    found = [
        dcc.Link(text, href=f'{widgets.address(f"/trial/{each}")}{query}')
        for text, neighbours in (('‹ previous', before), ('next ›', after))
        for each in neighbours[:1]
    ]
    others = [each for each in link.selected if each != number] or [BEST]
    compared = link.with_selected([number, *others])
    name = 'Compare with the best' if others == [BEST] else 'Compare with the selected'
    return [*found, dcc.Link(name, href=widgets.address('/compare') + compared)]


def register(app: Dash, page: Page) -> None:
    """Adds the callbacks of the view."""
    live, commands = page.live, page.commands
    trial_changes.register(app, live, page.actions)
    file_views.register(app, live)

    figures.register_curves(app, live, 'trial', _curve)
    for name, render in (('trial-live', _parts), ('trial-log', _log)):
        widgets.follow_trial(app, name, functools.partial(render, live))

    @app.callback(Output('architecture', 'children'), Input('url', 'pathname'))
    @widgets.guarded
    def architecture(path: str) -> list[Any]:
        return [
            part
            for model in commands.architecture(widgets.trial_at(path))
            for part in _model(model)
        ]


def _curve(live: LiveStudy, trials: Sequence[int], chosen: figures.Chosen) -> 'go.Figure':
    over = chosen['curves_over'] or STEP
    return trial_curve(live.study, trials[0], chosen['reward'], over)


def _log(live: LiveStudy, number: int) -> Any:
    lines = lines_about(live.study.directory, number)
    if not lines:
        return widgets.remark('No worker has written about this trial in logs/ of the study.')
    return html.Pre('\n'.join(lines), className='log')


def _parts(live: LiveStudy, number: int) -> list[Any]:
    study = live.study
    trial = study.trial(number)
    names = sorted({name for each in trial.measurements for name in each.metrics})
    # A reward that is a plain metric has its name, and is one column with it.
    rewards = reward_columns(study.rewards)
    rows = [
        {'step': each.step, **each.metrics, **dict(zip(rewards, each.rewards, strict=False))}
        for each in trial.measurements
    ]
    columns = ['step', *dict.fromkeys([*rewards, *names])]
    measured = Table(rows, columns, 'Measurements')
    return [*widgets.document(facts_of(study, trial)), widgets.table(measured)]


def _model(model: dict[str, Any]) -> list[Any]:
    name = model['sub_experiment']
    if 'problem' in model:
        return [widgets.problem(f'{name}: {model["problem"]}' if name else model['problem'])]
    costs = [name for name, each in model.items() if isinstance(each, int | float)]
    return [widgets.table(architecture_table(model, costs, name))]


VIEW = View('/trial', layout, register, numbers=r'/(\d{1,9})')
