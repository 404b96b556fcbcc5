"""The common look of figures, escaped text, and marks that stay fast for many points."""

import functools
import html
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from paxtune.analysis.decision_columns import DecisionColumn
from paxtune.analysis.trade_off import Axis
from paxtune.analysis.trial_values import NoValuesError, thinned
from paxtune.study.record import Status
from trainer.command import printable
from trainer.symbolic.errors import shortened
from trainer.symbolic.extras import MissingExtraError

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.trial import Trial

_Arguments = ParamSpec('_Arguments')

NO_TRIALS = 'There are no trials yet.'

COLORS = {
    Status.COMPLETED: '#1f77b4',
    Status.STOPPED: '#ff7f0e',
    Status.INFEASIBLE: '#d62728',
    Status.ACTIVE: '#2ca02c',
    Status.PAUSED: '#9467bd',
    Status.REQUESTED: '#7f7f7f',
}
BEST, MUTED = '#d62728', '#9a9a9a'

MAX_HOVERS = 1000
"""Trials whose decisions are shown under the pointer."""

MAX_TICKS = 20
"""Candidates of a choice that have a tick."""

_MAX_HOVER_LINES = 25
_SVG_POINTS = 2000  # Beyond, WebGL draws marks; a page may hold about eight WebGL figures.
_LONGEST_TITLE = 40  # An upright title must not be longer than its axis.
_SPAN = 100.0  # A larger ratio of positive values gets a logarithmic scale.


def text(value: object, max_length: int = 60) -> str:
    """Text for a figure. Plotly renders tags and entities of names as HTML, unless escaped.

    Example:
        >>> text('<b>rate</b> & more')
        '&lt;b&gt;rate&lt;/b&gt; &amp; more'
    """
    line = ' '.join(printable(str(value)).split())
    return html.escape(shortened(line, max_length=max_length), quote=False)


def empty(message: str) -> 'go.Figure':
    """A figure of one line of text."""
    import plotly.graph_objects as go

    drawn = go.Figure()
    drawn.update_layout(template='plotly_white', xaxis_visible=False, yaxis_visible=False)
    drawn.add_annotation(
        text=text(message, 200), showarrow=False, xref='paper', yref='paper', x=0.5, y=0.5
    )
    return drawn


def figure(title: str, **layout: Any) -> 'go.Figure':
    """A figure without traces."""
    import plotly.graph_objects as go

    drawn = go.Figure()
    drawn.update_layout(template='plotly_white', title=title, hovermode='closest', **layout)
    return drawn


def scatter(num_points: int, **fields: Any) -> Any:
    """A scatter trace of SVG for few points, of WebGL for many."""
    import plotly.graph_objects as go

    made = go.Scatter if num_points <= _SVG_POINTS else go.Scattergl
    return made(**fields)


def is_log(values: Sequence[float] | np.ndarray) -> bool:
    """Returns True if values are better seen on a logarithmic scale.

    Example:
        >>> is_log([0.1, 20.0, math.nan]), is_log([-0.1, 20.0]), is_log([])
        (True, False, False)
    """
    there = np.asarray(values, float)
    there = there[np.isfinite(there)]
    return bool(there.size and there.min() > 0 and there.max() >= _SPAN * there.min())


def scale(values: Sequence[float] | np.ndarray) -> str:
    """The type of a plotly axis for values."""
    return 'log' if is_log(values) else 'linear'


def axis_title(axis: Axis) -> str:
    """The title of the axis of a reward or metric."""
    name = text(axis.name, _LONGEST_TITLE)
    if axis.reward is None:
        return name
    return f'{name} ({"more" if axis.is_maximized else "less"} is better)'


def number(value: float | None) -> str:
    """A number for people."""
    return '' if value is None or math.isnan(value) else f'{value:.6g}'


def or_text(
    draw: 'Callable[_Arguments, go.Figure]',
) -> 'Callable[_Arguments, go.Figure]':
    """Makes a figure of one line of text where there is nothing to draw."""

    @functools.wraps(draw)
    def drawn(*args: _Arguments.args, **named: _Arguments.kwargs) -> 'go.Figure':
        try:
            return draw(*args, **named)
        except (NoValuesError, MissingExtraError) as error:
            return empty(str(error))

    return drawn


def grid(width: int, count: int, **options: Any) -> 'go.Figure':
    """A figure of several subplots, `width` in a row."""
    from plotly.subplots import make_subplots

    height = -(-count // width)
    drawn = make_subplots(height, width, vertical_spacing=0.3 / height, **options)
    drawn.update_layout(template='plotly_white', height=150 + 280 * height)
    return drawn


def place(index: int, width: int) -> dict[str, int]:
    """The row and the column of a subplot."""
    return {'row': index // width + 1, 'col': index % width + 1}


def bars(
    title: str, paths: Sequence[str], names: Sequence[str], *shares: tuple[str, Sequence[float]]
) -> 'go.Figure':
    """Draws shares of decisions as bars, the first decision at the top.

    Args:
        names: short names of the decisions.
        shares: a kind, and the share of each decision; the last kind stands out.
    """
    import plotly.graph_objects as go

    drawn = figure(title)
    # Positions, since two decisions may have the same short name once it is cut.
    rows = list(range(len(paths)))[::-1]
    for name, values in shares:
        drawn.add_trace(
            go.Bar(
                x=values[::-1],
                y=rows[::-1],
                orientation='h',
                name=name,
                marker={'color': MUTED if name != shares[-1][0] else COLORS[Status.COMPLETED]},
                hovertext=[text(each, 200) for each in paths][::-1],
                hovertemplate='%{hovertext}<br>%{x:.1%}<extra></extra>',
            )
        )
    drawn.update_yaxes(tickvals=rows[::-1], ticktext=names[::-1], automargin=True)
    drawn.update_xaxes(tickformat='.0%', rangemode='tozero')
    drawn.update_layout(legend_traceorder='reversed', height=200 + 30 * len(rows))
    return drawn


def decision_axis(name: str, labels: Sequence[str], is_log: bool) -> dict[str, Any]:
    """The plotly axis of a decision: `labels` are the candidates of a choice, none for a range.

    Example:
        >>> decision_axis('rate', [], is_log=True)
        {'title': 'rate', 'type': 'log'}
    """
    about: dict[str, Any] = {'title': text(name, 40)}
    if not labels:
        return about | {'type': 'log' if is_log else 'linear'}
    ticks = thinned(len(labels), MAX_TICKS)
    return about | {
        'type': 'linear',
        'tickvals': ticks,
        'ticktext': [text(labels[tick], 20) for tick in ticks],
        'range': [-0.5, len(labels) - 0.5],
    }


def hovers(trials: 'Sequence[Trial]', columns: Sequence[DecisionColumn]) -> list[str]:
    """The text under the pointer for each trial; without decisions where there are many trials."""
    if len(trials) > MAX_HOVERS:
        return [f'trial {trial.id}, {trial.status}' for trial in trials]
    return [
        '<br>'.join(
            [
                f'<b>trial {trial.id}</b>, {trial.status}',
                *itertools.islice(_decided(columns, row), _MAX_HOVER_LINES),
                *([text(trial.reason)] if trial.reason else []),
            ]
        )
        for row, trial in enumerate(trials)
    ]


def _decided(columns: Sequence[DecisionColumn], row: int) -> Iterable[str]:
    for column in columns:
        if value := column.at(row):
            yield f'{text(column.name)}: {text(value)}'
