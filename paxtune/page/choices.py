"""Choices of a browser for figures: rewards, axes, decisions. They are in the address."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from paxtune.analysis.trade_off import COST
from paxtune.page import rows
from paxtune.page.links import Link
from paxtune.page.live import LiveStudy
from paxtune.study.columns import reward_columns
from trainer.symbolic.errors import UserError

Options = list[dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Something to choose.

    Attributes:
        name: for people.
        options: lists the options of a browser.
        unchosen: describes the effect of no choice; '' if there always is one.
    """

    name: str
    options: Callable[[LiveStudy], Options]
    unchosen: str = ''


def elements(live: LiveStudy, link: Link, names: Sequence[str]) -> list[Any]:
    """Makes the elements in which something is chosen, side by side."""
    made = [_choice(live, link, name) for name in names]
    return [html.Div(made, className='choices')] if made else []


def chosen(live: LiveStudy, link: Link, names: Iterable[str]) -> dict[str, str | None]:
    """Returns the choices that an address has, or those of a new browser."""
    given = {name: link.one(name) for name in names}
    return {name: each or default(live, name) for name, each in given.items()}


def element_id(name: Any) -> dict[str, Any]:
    """Returns the id of the element of a choice."""
    return {'type': 'choice', 'name': name}


def register(app: Dash, live: LiveStudy) -> None:
    """Adds the callbacks that keep the options of all choices, and the address, up to date."""

    @app.callback(
        Output(element_id(MATCH), 'options'),
        Input('version', 'data'),
        State(element_id(MATCH), 'options'),
        State(element_id(MATCH), 'id'),
        prevent_initial_call=True,
    )
    def refresh(version: str, known: Any, id_: Any) -> Any:
        choice = _CHOICES.get(id_['name']) if isinstance(id_, dict) else None
        try:
            found = no_update if choice is None else choice.options(live)
        except UserError:  # The header says so.
            return no_update
        return no_update if found == known else found

    names, first = State(element_id(ALL), 'id'), State({'type': 'first', 'name': ALL}, 'data')
    app.clientside_callback(
        ClientsideFunction('choices', 'write'),
        Output('url', 'search', allow_duplicate=True),
        Input(element_id(ALL), 'value'),
        names,
        first,
        State('url', 'search'),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction('choices', 'show'),
        Input('url', 'search'),
        State(element_id(ALL), 'value'),
        names,
        first,
        prevent_initial_call=True,
    )


def _choice(live: LiveStudy, link: Link, name: str) -> html.Label:
    choice = _CHOICES[name]
    options = choice.options(live)
    first = default(live, name)
    select = dcc.Dropdown(
        options,
        link.one(name) or first,
        id=element_id(name),
        clearable=first is None,
        placeholder=choice.unchosen,
    )
    # A single option needs no choice, but the callbacks need the element.
    hidden = {'display': 'none'} if len(options) < 2 else {}
    stored = dcc.Store(id={'type': 'first', 'name': name}, data=first)
    return html.Label([html.Span(choice.name), stored, select], style=hidden)


def default(live: LiveStudy, name: str) -> str | None:
    """Returns the choice of a new browser; None if there are no options."""
    if name in _FIXED:
        return next(iter(_FIXED[name]))
    if _CHOICES[name].unchosen:
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


def _options_of_reward(live: LiveStudy) -> Options:
    rewards = reward_columns(live.study.rewards)
    return [_option(name) for name in dict.fromkeys([*rewards, *_metrics(live)])]


def _options_of_axis(live: LiveStudy) -> Options:
    rewards = reward_columns(live.study.rewards)
    found = [_option(name) for name in rewards]
    for name in _metrics(live):
        if name not in rewards:
            found.append(_option(name, f'{name} (less is better)'))
            found.append(_option(f'+{name}', f'{name} (more is better)'))
    return found


def _options_of_decision(live: LiveStudy) -> Options:
    return [_option(path, name) for path, name in live.study.space.short_names.items()]


def _option(value: str, label: str = '') -> dict[str, str]:
    return {'label': label or value, 'value': value}


def _metrics(live: LiveStudy) -> list[str]:
    def names() -> list[str]:
        return sorted(
            {name for trial in rows.examples(live.snapshot().trials) for name in trial.metrics}
        )

    found: list[str] = live.computed('metrics', names)
    return found


_SCALES = {'auto': 'as fits', 'linear': 'linear', 'log': 'logarithmic'}
_FIXED = {
    'x_scale': _SCALES,
    'y_scale': _SCALES,
    'diverged': {'shown': 'shown', 'hidden': 'hidden'},
    'curves_over': {'step': 'step', 'seconds': 'seconds of the trial'},
    'history_over': {'trial': 'trial', 'time': 'time', 'seconds': 'seconds of all trials'},
}
"""Options that all studies have, the first one for a new browser."""


def _fixed(name: str, has_metrics: bool = False) -> Callable[[LiveStudy], Options]:
    def options(live: LiveStudy) -> Options:
        metrics = _metrics(live) if has_metrics else []
        found = _FIXED[name] | {each: each for each in metrics if each not in _FIXED[name]}
        return [_option(*each) for each in found.items()]

    return options


_IMPORTANT, _LARGEST = 'the most important one', 'that with the largest effect'
_CHOICES = {
    'reward': Choice('Reward or metric', _options_of_reward),
    'x': Choice('Horizontal axis', _options_of_axis),
    'y': Choice('Vertical axis', _options_of_axis),
    'first': Choice('Horizontal axis of the contour', _options_of_decision, _IMPORTANT),
    'second': Choice('Vertical axis', _options_of_decision, _IMPORTANT),
    'decision': Choice('Decision', _options_of_decision, 'those with the largest effects'),
    'surface-x': Choice('Horizontal axis', _options_of_decision, _LARGEST),
    'surface-y': Choice('Vertical axis', _options_of_decision, _LARGEST),
    'curves_over': Choice('Curves over', _fixed('curves_over', has_metrics=True)),
    'history_over': Choice('History over', _fixed('history_over', has_metrics=True)),
    'x_scale': Choice('Horizontal scale', _fixed('x_scale')),
    'y_scale': Choice('Vertical scale', _fixed('y_scale')),
    'diverged': Choice('Diverged trials', _fixed('diverged')),
}
