"""Choices of a browser for figures: rewards, axes, decisions."""

import dataclasses
from collections.abc import Callable
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from paxtune.analysis.trade_off import COST
from paxtune.page.live import LiveStudy
from paxtune.study.columns import reward_columns
from trainer.symbolic.errors import UserError


@dataclasses.dataclass(frozen=True)
class Choice:
    """Something to choose.

    Attributes:
        name: for people.
        options: lists the options of a browser.
        unchosen: describes the effect of no choice; '' if there always is one.
    """

    name: str
    options: Callable[[LiveStudy], list[dict[str, str]]]
    unchosen: str = ''


def elements(live: LiveStudy, names: list[str]) -> list[Any]:
    """Makes the elements in which something is chosen, side by side."""
    made = [_choice(live, name) for name in names]
    return [html.Div(made, className='choices')] if made else []


def register(app: Dash, live: LiveStudy) -> None:
    """Adds the callbacks that keep the options of all choices up to date."""
    for name, choice in _CHOICES.items():
        _register(app, live, name, choice)


def _register(app: Dash, live: LiveStudy, name: str, choice: Choice) -> None:
    @app.callback(
        Output(f'choice-{name}', 'options'),
        Input('version', 'data'),
        State(f'choice-{name}', 'options'),
        prevent_initial_call=True,
    )
    def refresh(version: str, known: Any) -> Any:
        try:
            found = choice.options(live)
        except UserError:  # The header says so.
            return no_update
        return no_update if found == known else found


def _choice(live: LiveStudy, name: str) -> html.Label:
    choice = _CHOICES[name]
    options = choice.options(live)
    chosen = None if choice.unchosen else default(live, name)
    select = dcc.Dropdown(
        options,
        chosen,
        id=f'choice-{name}',
        clearable=chosen is None,
        placeholder=choice.unchosen,
        persistence=True,
        persistence_type='session',
    )
    # A single option needs no choice, but the callbacks need the element.
    hidden = {'display': 'none'} if len(options) < 2 else {}
    return html.Label([html.Span(choice.name), select], style=hidden)


def default(live: LiveStudy, name: str) -> str | None:
    """Returns the choice of a new browser; None if there are no options."""
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


def _metrics(live: LiveStudy) -> list[str]:
    def names() -> list[str]:
        return sorted({name for trial in live.snapshot().trials for name in trial.metrics})

    found: list[str] = live.computed('metrics', names)
    return found


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
}
