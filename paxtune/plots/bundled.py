"""Figures for plotly's small bundle, which has neither WebGL nor parallel coordinates."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import plotly.graph_objects as go

_COLORS = 12  # Of lines: each color is a trace.
_HEIGHT = 480
_MANY = 1000


def bundled(figure: 'go.Figure') -> 'go.Figure':
    """Draws a figure of `paxtune.plots` with traces of the small bundle.

    Example:
        >>> import plotly.graph_objects as go
        >>> axes = [{'label': 'a', 'values': [0, 2], 'range': [0, 4]}]
        >>> drawn = bundled(go.Figure(go.Parcoords(dimensions=axes, line={'color': [1, 2]})))
        >>> [list(trace.y) for trace in drawn.data]
        [[0.0, None], [0.5, None]]
    """
    import plotly.graph_objects as go

    lines = [trace for trace in figure.data if trace.type == 'parcoords']
    if lines:
        return _as_lines(figure, lines[0])
    traces = []
    for trace in figure.data:
        fields = trace.to_plotly_json()
        if fields['type'] == 'scattergl':
            fields['type'] = 'scatter'
        if isinstance(y := fields.get('y'), np.ndarray):
            fields['y'] = _short(y)
        traces.append(fields)
    return go.Figure(data=traces, layout=figure.layout)


def _short(values: np.ndarray) -> np.ndarray:
    """Many numbers with the seven digits that a figure can show: half the bytes."""
    is_float = values.dtype == np.float64 and values.size >= _MANY
    if not is_float or not np.nanmax(np.abs(values)) < np.finfo(np.float32).max:
        return values
    return values.astype(np.float32)


def _as_lines(figure: 'go.Figure', lines: Any) -> 'go.Figure':
    """Draws parallel coordinates as lines of a scatter plot."""
    import plotly.graph_objects as go

    drawn = go.Figure(layout=figure.layout)
    places = np.array([_shares(axis, axis['values']) for axis in lines.dimensions]).T
    color = np.asarray(lines.line.color, float)
    low, high = (color.min(), color.max()) if len(color) else (0.0, 1.0)
    shares = (color - low) / ((high - low) or 1.0)
    for index, name in enumerate(_scale(bool(lines.line.reversescale))):
        rows = np.flatnonzero(np.minimum((shares * _COLORS).astype(int), _COLORS - 1) == index)
        if len(rows):
            drawn.add_trace(_trace(places[rows], name))
    for place, axis in enumerate(lines.dimensions):
        drawn.add_vline(place, line={'width': 1, 'color': '#444'})
        _annotate(drawn, place, axis)
    drawn.update_xaxes(visible=False, range=[-0.4, len(lines.dimensions) - 0.8])
    drawn.update_yaxes(visible=False, range=[-0.03, 1.03])
    drawn.update_layout(height=_HEIGHT)
    return drawn


def _trace(places: np.ndarray, color: str) -> Any:
    import plotly.graph_objects as go

    y = [each for row in places.tolist() for each in (*row, None)]
    x = [*range(places.shape[1]), None] * len(places)
    line = {'color': color, 'width': 1}
    return go.Scatter(
        x=x, y=y, mode='lines', line=line, opacity=0.7, hoverinfo='skip', showlegend=False
    )


def _scale(is_reversed: bool) -> list[str]:
    from plotly.colors import sample_colorscale

    names: list[str] = sample_colorscale('Viridis', np.linspace(0.0, 1.0, _COLORS).tolist())
    return names[::-1] if is_reversed else names


def _annotate(drawn: 'go.Figure', place: int, axis: Any) -> None:
    """Writes the name of an axis above it, and the ticks to its left."""
    drawn.add_annotation(
        x=place,
        y=1.0,
        yref='paper',
        yshift=14,
        text=axis.label,
        textangle=-15,
        showarrow=False,
        xanchor='left',
        yanchor='bottom',
    )
    if axis.tickvals is None:
        return
    for share, name in zip(_shares(axis, axis.tickvals), axis.ticktext, strict=True):
        drawn.add_annotation(
            x=place,
            y=share,
            text=name,
            font={'size': 10},
            showarrow=False,
            xanchor='right',
            xshift=-3,
            bgcolor='rgba(255,255,255,0.7)',
        )


def _shares(axis: Any, values: Sequence[float]) -> np.ndarray:
    """Values of an axis, as shares of its range."""
    low, high = axis.range
    return (np.asarray(values, float) - low) / ((high - low) or 1.0)
