"""The views of figures, and the history on the overview."""

import re
from typing import TYPE_CHECKING, Any

from dash import Dash, html

from paxtune import plots
from paxtune.analysis.decision_columns import MAX_DECISIONS
from paxtune.analysis.forest import fit_elsewhere
from paxtune.analysis.importance import Importances, importances_by
from paxtune.page import choices, figures, model_view, widgets
from paxtune.page.figures import Chosen, Panel, View
from paxtune.page.live import LiveStudy
from paxtune.plots.decisions import importance_figure
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go


def _history(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return plots.history(live.study, chosen['reward'])


def _curves(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return plots.curves(live.study, chosen['reward'])


def _rank_correlations(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return plots.rank_correlations(live.study, chosen['reward'])


def _best_so_far(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return plots.best_so_far(live.study, chosen['reward'])


def _importances(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return importance_figure(live.study, _ranking(live, chosen['reward']))


def _parallel_coordinates(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    reward = chosen['reward']
    return plots.parallel_coordinates(live.study, reward, _most_important(live, reward))


def _slices(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    reward = chosen['reward']
    return plots.slices(live.study, reward, _most_important(live, reward))


def _contour(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    given = [chosen['first'], chosen['second']]
    if given[0] is not None and given[0] == given[1]:
        raise UserError('Choose two different decisions.')
    if None in given:
        ranked = [each.path for each in _ranking(live, chosen['reward']).decisions]
        others = iter([path for path in ranked if path not in given])
        given = [each or next(others, None) for each in given]
    first, second = given
    return plots.contour(live.study, first, second, chosen['reward'])


def _hypervolume(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return plots.hypervolume(live.study)


def _pareto_front(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    x, y = chosen['x'], chosen['y']
    if x is not None and y is not None and x.removeprefix('+') == y.removeprefix('+'):
        raise UserError('Choose two different numbers.')
    try:
        return plots.pareto_front(live.study, x, y)
    except UserError as error:  # It names the flags of a command.
        raise UserError(re.sub(r'^--[xy]=', '', str(error))) from error


def _timeline(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return plots.timeline(live.study)


def _lineage(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return plots.lineage(live.study, chosen['reward'])


HISTORY = Panel('history', _history)

VIEWS = {
    '/learning': View(
        'Learning',
        'A cross ends the curve of a trial that was stopped early, a square that of a paused one; '
        'dotted lines are rungs.',
        (
            Panel('curves', _curves),
            Panel('rank-correlations', _rank_correlations, opens_trials=False),
            Panel('best-so-far', _best_so_far, opens_trials=False),
        ),
    ),
    '/decisions': View(
        'Decisions',
        'Which decisions matter, and which values are good.',
        (
            Panel('importances', _importances, opens_trials=False),
            Panel('parallel-coordinates', _parallel_coordinates, opens_trials=False),
            Panel('slices', _slices),
            Panel('contour', _contour, ('reward', 'first', 'second')),
        ),
    ),
    '/model': model_view.VIEW,
    '/trade-off': View(
        'Trade-off',
        'Completed trials by two numbers, and those that no other one beats in both.',
        (
            Panel('pareto-front', _pareto_front, ('x', 'y')),
            Panel('hypervolume', _hypervolume, (), opens_trials=False),
        ),
    ),
    '/workers': View(
        'Workers',
        'The attempts of each worker over time, by how they ended.',
        (Panel('timeline', _timeline, ()),),
    ),
    '/lineage': View(
        'Lineage',
        'Which trial comes from which: weights, decisions, replicates; pauses and promotions.',
        (Panel('lineage', _lineage),),
    ),
}
"""The views by their address."""


def layout(live: LiveStudy, path: str) -> list[Any]:
    """Makes a view; its figures are filled in by callbacks."""
    view = VIEWS[path]
    parts: list[Any] = [html.H2(view.title), widgets.remark(view.about)]
    shared = ['reward'] if any(panel.heading for panel in view.panels) else []
    parts += choices.elements(live, shared)
    for panel in view.panels:
        # What a figure shares with one above is chosen there.
        above = {name for each in view.panels[: view.panels.index(panel)] for name in each.choices}
        names = [name for name in panel.choices if name not in {*above, *shared}]
        parts += figures.panel_elements(live, panel, names)
    return parts


def register(app: Dash, live: LiveStudy) -> None:
    """Adds the callbacks of all views."""
    figures.register(app, live, [HISTORY])
    for view in VIEWS.values():
        figures.register(app, live, view.panels)
    choices.register(app, live)


def _ranking(live: LiveStudy, reward: str | None) -> Importances:
    """The importance of decisions, which several figures need."""
    if reward is None and not live.study.rewards:
        raise UserError('The study has no reward: name a metric.')
    found: Importances = live.computed(
        ('ranking', reward), lambda: importances_by(fit_elsewhere, live.study, reward)
    )
    return found


def _most_important(live: LiveStudy, reward: str | None) -> list[str] | None:
    """The decisions to show where there are many; None for all."""
    if len(live.study.space.short_names) <= MAX_DECISIONS:
        return None
    return [each.path for each in _ranking(live, reward).decisions[:MAX_DECISIONS]] or None
