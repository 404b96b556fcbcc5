"""The views of figures, and the history on the overview."""

import dataclasses
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from paxtune import plots
from paxtune.analysis.forest import fit_elsewhere
from paxtune.analysis.importance import Importances, importances_by
from paxtune.analysis.trade_off import COST
from paxtune.page import figures, widgets
from paxtune.page.figures import Chosen, Panel
from paxtune.page.live import LiveStudy
from paxtune.plots.data import MOST_DECISIONS
from paxtune.plots.decisions import importance_figure
from paxtune.study.frames import reward_columns
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclasses.dataclass(frozen=True)
class View:
    """A view of figures.

    Attributes:
        title: its name in the navigation.
        about: a line about it.
        panels: its figures, from the top.
    """

    title: str
    about: str
    panels: tuple[Panel, ...]


def _history(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return plots.history(live.study, chosen['reward'])


def _curves(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return plots.curves(live.study, chosen['reward'])


def _rank_correlations(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return plots.rank_correlations(live.study, chosen['reward'])


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
    '/trade-off': View(
        'Trade-off',
        'Completed trials by two numbers, and those that no other one beats in both.',
        (Panel('pareto-front', _pareto_front, ('x', 'y')),),
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
    for panel in view.panels:
        # What a figure shares with one above is chosen there.
        above = {name for each in view.panels[: view.panels.index(panel)] for name in each.choices}
        parts += choices(live, [name for name in panel.choices if name not in above])
        parts.append(figures.graph(panel.name))
    return parts


def choices(live: LiveStudy, names: list[str]) -> list[Any]:
    """Makes the elements in which something is chosen, side by side."""
    made = [_choice(live, name) for name in names]
    return [html.Div(made, className='choices')] if made else []


def register(app: Dash, live: LiveStudy) -> None:
    """Adds the callbacks of all views."""
    figures.register(app, live, [HISTORY])
    for view in VIEWS.values():
        figures.register(app, live, view.panels)
    for name in _OPTIONS:
        _register_options(app, live, name)


def _register_options(app: Dash, live: LiveStudy, name: str) -> None:
    @app.callback(
        Output(f'choice-{name}', 'options'),
        Input('version', 'data'),
        State(f'choice-{name}', 'options'),
        prevent_initial_call=True,
    )
    def refresh(version: str, known: Any) -> Any:
        try:
            found = _OPTIONS[name](live)
        except UserError:  # The header says so.
            return no_update
        return no_update if found == known else found


def _choice(live: LiveStudy, name: str) -> html.Label:
    options = _OPTIONS[name](live)
    default = _default(live, name)
    select = dcc.Dropdown(
        options,
        default,
        id=f'choice-{name}',
        clearable=default is None,
        placeholder='the most important one',
        persistence=True,
        persistence_type='session',
    )
    # One possibility is no choice, but the callbacks need the element.
    hidden = {'display': 'none'} if len(options) < 2 else {}
    return html.Label([html.Span(_NAMES[name]), select], style=hidden)


def _default(live: LiveStudy, name: str) -> str | None:
    if name in ('first', 'second'):
        return None
    rewards, metrics = reward_columns(live.study.rewards), _metrics(live)
    if name == 'reward':
        return next(iter([*rewards, *metrics]), None)
    if len(rewards) > 1:
        return rewards[0 if name == 'x' else 1]
    # A size first, as in the command.
    others = sorted(metrics, key=lambda each: (COST not in each, each))
    pair = [*[each for each in others if each not in rewards][: 2 - len(rewards)], *rewards]
    return pair[0 if name == 'x' else 1] if len(pair) > 1 else None


def _options_of_reward(live: LiveStudy) -> list[dict[str, str]]:
    rewards = reward_columns(live.study.rewards)
    names = [*rewards, *(each for each in _metrics(live) if each not in rewards)]
    return [{'label': name, 'value': name} for name in names]


def _options_of_axis(live: LiveStudy) -> list[dict[str, str]]:
    rewards = reward_columns(live.study.rewards)
    found = [{'label': name, 'value': name} for name in rewards]
    for name in _metrics(live):
        if name not in rewards:
            found.append({'label': f'{name} (less is better)', 'value': name})
            found.append({'label': f'{name} (more is better)', 'value': f'+{name}'})
    return found


def _options_of_decision(live: LiveStudy) -> list[dict[str, str]]:
    names = live.study.space.short_names
    return [{'label': name, 'value': path} for path, name in names.items()]


_OPTIONS: dict[str, Callable[[LiveStudy], list[dict[str, str]]]] = {
    'reward': _options_of_reward,
    'x': _options_of_axis,
    'y': _options_of_axis,
    'first': _options_of_decision,
    'second': _options_of_decision,
}
_NAMES = {
    'reward': 'Reward or metric',
    'x': 'Horizontal axis',
    'y': 'Vertical axis',
    'first': 'Horizontal axis of the contour',
    'second': 'Vertical axis',
}


def _metrics(live: LiveStudy) -> list[str]:
    def names() -> list[str]:
        return sorted({name for trial in live.snapshot().trials for name in trial.metrics})

    found: list[str] = live.computed('metrics', names)
    return found


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
    if len(live.study.space.short_names) <= MOST_DECISIONS:
        return None
    return [each.path for each in _ranking(live, reward).decisions[:MOST_DECISIONS]] or None
