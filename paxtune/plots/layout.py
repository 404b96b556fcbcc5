"""The common look of figures, escaped text, and marks that stay fast for many points."""

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paxtune.analysis.trade_off import Axis
from paxtune.study.record import Status
from trainer.command import printable
from trainer.symbolic.errors import shortened

if TYPE_CHECKING:
    import plotly.graph_objects as go

NO_TRIALS = 'There are no trials yet.'
NO_REWARD = 'The study has no reward: name a metric.'
NOT_MEASURED = 'No trial has been measured yet.'
NOT_COMPLETED = 'No trial was completed yet.'

COLORS = {
    Status.COMPLETED: '#1f77b4',
    Status.STOPPED: '#ff7f0e',
    Status.INFEASIBLE: '#d62728',
    Status.ACTIVE: '#2ca02c',
    Status.PAUSED: '#9467bd',
    Status.REQUESTED: '#7f7f7f',
}
BEST, MUTED = '#d62728', '#9a9a9a'

_SVG_POINTS = 2000  # Beyond, marks are drawn by WebGL, of which a page may hold about eight.
_LONGEST_TITLE = 40  # An upright title must not be longer than its axis.
_SPAN = 100.0  # Positive values that differ more than so many times have a logarithmic scale.


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


def thinned(count: int, most: int) -> np.ndarray:
    """Evenly spaced indices, the first and the last one included: all of them if they are few.

    Example:
        >>> thinned(4, 9), thinned(9, 3)
        (array([0, 1, 2, 3]), array([0, 4, 8]))
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
