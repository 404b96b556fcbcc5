"""Live figures: their elements, and how they are drawn again.

The server draws a figure once for all browsers, when the study or a choice has changed. A browser
that has the figure gets no update. Zoom and selection stay until a choice changes.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dash import Dash, Input, Output, State, dcc, html, no_update

from paxtune.analysis.trial_values import NoValuesError, axis_for, diverged
from paxtune.page import choices, widgets
from paxtune.page.fitting import fitted
from paxtune.page.links import BEST, Link
from paxtune.page.live import LiveStudy
from paxtune.page.results import Source
from paxtune.page.view import Page, View
from paxtune.plots import layout
from paxtune.plots.restyle import SCALES, restyled
from paxtune.plots.svg import without_webgl
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go

Chosen: TypeAlias = Mapping[str, str | None]
"""The values that a browser has chosen, by the name of the choice."""

_CONFIG: Any = {
    'displaylogo': False,
    'responsive': True,
    'modeBarButtonsToRemove': ['lasso2d', 'select2d', 'autoScale2d'],
    'plotlyServerURL': '',  # Nothing is sent to another host.
}


@dataclasses.dataclass(frozen=True)
class Panel:
    """A figure of a view.

    Attributes:
        name: the element is `figure-<name>`.
        draw: makes the figure; UserError explains why there is none.
        choices: names of its choices.
        opens_trials: a click on a point opens its trial, the first of its `customdata`.
        heading: of a figure that is only drawn once a browser asks for it; '' for any other.
        about: a line below the heading.
    """

    name: str
    draw: Callable[[LiveStudy, Chosen], 'go.Figure']
    choices: tuple[str, ...] = ('reward',)
    opens_trials: bool = True
    heading: str = ''
    about: str = ''

    @property
    def id(self) -> str:
        """The id of the element."""
        return f'figure-{self.name}'


@dataclasses.dataclass(frozen=True)
class FigureView(View):
    """A view of figures, from the top."""

    panels: tuple[Panel, ...] = ()


LOOK = ('x_scale', 'y_scale', 'diverged')
"""Choices that change a finished figure."""

CURVE = ('reward', 'curves_over', *LOOK[:2])
"""Choices of the learning curves of single trials."""


def of_study(
    plot: Callable[..., 'go.Figure'], over: str = ''
) -> Callable[[LiveStudy, Chosen], 'go.Figure']:
    """Draws a figure whose arguments are called as its choices.

    Args:
        plot: draws the figure of a study.
        over: the choice that is its argument `over`; '' for none.
    """

    def draw(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
        named = {'over' if name == over else name: value for name, value in chosen.items()}
        return plot(live.study, **{name: each for name, each in named.items() if name not in LOOK})

    return draw


def figure_view(path: str, title: str, about: str, *panels: Panel) -> FigureView:
    """Makes a view of figures.

    Args:
        path: its address.
        title: its name in the navigation.
        about: a line about it.
        panels: its figures, from the top.
    """

    def layout(live: LiveStudy, link: Link) -> list[Any]:
        parts: list[Any] = [html.H2(title), widgets.remark(about)]
        shared = ['reward'] if any(panel.heading for panel in panels) else []
        parts += choices.elements(live, link, shared)
        chosen = set(shared)
        for panel in panels:
            # The choices that a figure shares with one above are made there.
            own = [each for each in panel.choices if each not in chosen]
            parts += panel_elements(live, link, panel, own)
            chosen |= {*panel.choices}
        return parts

    def register_all(app: Dash, page: Page) -> None:
        register(app, page.live, panels)

    return FigureView(path, layout, register_all, title, panels=panels)


def panel_elements(live: LiveStudy, link: Link, panel: Panel, names: Sequence[str]) -> list[Any]:
    """Makes the elements of a figure.

    Args:
        live: the study.
        link: the choices in the address.
        panel: the figure.
        names: the choices beside this figure, not above it.
    """
    if not panel.heading:
        return [*choices.elements(live, link, names), graph(panel.name)]
    button = html.Button('Draw', id=f'ask-{panel.name}')
    parts = [html.H3(panel.heading), widgets.remark(panel.about)]
    return [html.Div([*parts, html.Div(button, id=f'asked-{panel.name}')], className='part')]


def graph(name: str) -> html.Div:
    """Makes the element of a figure, which a callback fills in."""
    waiting = fitted(layout.empty('Drawing …'), '')
    figure = dcc.Graph(
        id=f'figure-{name}',
        figure=waiting,
        config=_CONFIG | {'toImageButtonOptions': {'filename': name, 'scale': 2}},
    )
    return html.Div([figure, dcc.Store(id=f'drawn-{name}')], className='figure')


def register(app: Dash, live: LiveStudy, panels: Sequence[Panel]) -> None:
    """Adds the callbacks of the figures of a view."""
    for panel in panels:
        _register(app, live, panel)
        if panel.heading:
            _register_question(app, live, panel)
        if panel.opens_trials:
            # Separately: a view may not have asked for the others.
            register_clicks(app, panel.id)


def _register(app: Dash, live: LiveStudy, panel: Panel) -> None:
    @app.callback(
        Output(panel.id, 'figure'),
        Output(f'drawn-{panel.name}', 'data'),
        Input('version', 'data'),
        Input('url', 'search'),
        State(f'drawn-{panel.name}', 'data'),
    )
    def refresh(version: str, search: str, known: Any) -> Any:
        return _drawn_panel(live, panel, search, known)


def prepare(live: LiveStudy, panel: Panel) -> None:
    """Draws a figure, as a new browser asks for it."""
    _drawn_panel(live, panel, '', None)


def _drawn_panel(live: LiveStudy, panel: Panel, search: str, known: str | None) -> Any:
    def draw(chosen: Chosen) -> 'go.Figure':
        return panel.draw(live, chosen)

    has_trials = panel.opens_trials or 'diverged' in panel.choices
    return drawn_for(live, (panel.id,), search, panel.choices, draw, known, has_trials)


def drawn_for(
    live: LiveStudy,
    name: tuple[Any, ...],
    search: str,
    names: Sequence[str],
    draw: Callable[[Chosen], 'go.Figure'],
    known: str | None,
    has_trials: bool = True,
) -> tuple[Any, Any]:
    """Returns a figure as an address wants it, as `drawn` does.

    Args:
        live: the study.
        name: the figure.
        search: the query of the address.
        names: the choices of the figure.
        draw: makes the figure of its choices.
        known: the token of the figure that the browser has.
        has_trials: its points are trials, of which selected ones stand out.
    """
    try:
        link = Link.parse(search)
        chosen = choices.chosen(live, link, names)
        selected = selected_trials(live, link) if has_trials else []
    except UserError as error:
        return fitted(layout.empty(str(error)), ''), None

    def draw_styled() -> 'go.Figure':
        made = draw(chosen)
        x, y = (SCALES.get(chosen.get(name) or '') for name in LOOK[:2])
        hidden = _diverged(live, chosen) if chosen.get('diverged') == 'hidden' else set[int]()
        return restyled(made, x, y, selected, hidden)

    return drawn(live, (*name, *chosen.values(), *selected), draw_styled, known)


def register_curves(
    app: Dash,
    live: LiveStudy,
    name: str,
    draw: Callable[[LiveStudy, Sequence[int], Chosen], 'go.Figure'],
) -> None:
    """Adds the callbacks of learning curves of the trial of the address, or of selected ones."""
    register_clicks(app, f'figure-{name}')

    @app.callback(
        Output(f'figure-{name}', 'figure'),
        Output(f'drawn-{name}', 'data'),
        Input('version', 'data'),
        Input('url', 'search'),
        State('url', 'pathname'),
        State(f'drawn-{name}', 'data'),
    )
    def refresh(version: str, search: str, path: str, known: str | None) -> Any:
        number, trials = widgets.trial_in(path), list[int]()
        with contextlib.suppress(UserError):  # The figure says so.
            trials = selected_trials(live, Link.parse(search)) if number is None else [number]

        def drawing(chosen: Chosen) -> 'go.Figure':
            return draw(live, trials, chosen)

        is_single = number is not None
        return drawn_for(live, (name, *trials), search, CURVE, drawing, known, is_single)


def selected_trials(live: LiveStudy, link: Link) -> list[int]:
    """Returns the numbers of the trials that an address selects, the best one among them."""
    found = {each: None for each in link.selected if isinstance(each, int)}
    if BEST in link.selected and (best := live.study.best) is not None:
        found[best.id] = None
    return [*found]


def _diverged(live: LiveStudy, chosen: Chosen) -> set[int]:
    try:
        return diverged(axis_for(live.study, chosen.get('reward')), live.snapshot().trials)
    except NoValuesError:  # The figure says so.
        return set()


def _register_question(app: Dash, live: LiveStudy, panel: Panel) -> None:
    @app.callback(
        Output(f'asked-{panel.name}', 'children'),
        Input(f'ask-{panel.name}', 'n_clicks'),
        State('url', 'search'),
        prevent_initial_call=True,
    )
    @widgets.guarded
    def ask(clicks: int, search: str) -> Any:
        own = [name for name in panel.choices if name != 'reward']
        return [*choices.elements(live, Link.parse(search), own), graph(panel.name)]


def register_clicks(app: Dash, id_: str) -> None:
    """Adds the callback that opens the trial of a point of a figure."""

    @app.callback(
        Output('url', 'pathname', allow_duplicate=True),
        Input(id_, 'clickData'),
        prevent_initial_call=True,
    )
    def open_trial(clicked: Any) -> Any:
        number = clicked_trial(clicked)
        return no_update if number is None else widgets.address(f'/trial/{number}')


def clicked_trial(clicked: Any) -> int | None:
    """Returns the trial of a point that was clicked at; None if it stands for none.

    Example:
        >>> clicked_trial({'points': [{'customdata': [12, 0.5]}]}), clicked_trial(None)
        (12, None)
    """
    points = clicked.get('points') if isinstance(clicked, dict) else None
    about = points[0].get('customdata') if points else None
    first = about[0] if isinstance(about, list) and about else about
    return int(first) if isinstance(first, int | float) else None


def drawn(
    live: Source,
    key: tuple[Any, ...],
    draw: Callable[[], 'go.Figure'],
    known: str | None,
) -> tuple[Any, Any]:
    """Returns a figure and its token for a browser; no update where it has that already.

    Args:
        live: the study.
        key: the figure and its choices. Another key resets zoom and selection.
        draw: makes the figure.
        known: the token of the figure that the browser has.
    """

    def figure() -> Any:
        try:
            made = draw()
        except UserError as error:
            made = layout.empty(str(error))
        return without_webgl(
            fitted(made, hashlib.sha256(repr(key).encode()).hexdigest())
        ).to_plotly_json()

    try:
        found = live.computation(key, figure)
    except UserError as error:  # The study cannot be read now.
        return fitted(layout.empty(str(error)), ''), None
    if found.token == known:
        return no_update, no_update
    return found.value, found.token
