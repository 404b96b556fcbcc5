"""Figures without WebGL, in traces of plotly's small bundle: pure functions.

Plotly compiles code for WebGL in the browser, which the content security policy of the page
forbids. SVG has no such need, but is slow for many points.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from plotly.colors import sample_colorscale

from paxtune.analysis.trial_values import thinned
from paxtune.plots.layout import number
from paxtune.plots.restyle import HIGHLIGHTS, PALE, SELECTED, with_points

if TYPE_CHECKING:
    import plotly.graph_objects as go

Json: TypeAlias = dict[str, Any]

MAX_POINTS = 1500
"""Marks of a figure."""

_MAX_PARALLEL_LINES = 1000  # More lines hide each other.
_MAX_MARKED = 6000  # Points of lines that also have marks.
_COLORS = 16
_MANY = 1000


def without_webgl(made: 'go.Figure') -> 'go.Figure':
    """Replaces traces that need WebGL, and thins out marks; the title says so."""
    import plotly.graph_objects as go

    layout = made.layout.to_plotly_json()
    traces = [new for old in made.data for new in _in_svg(old.to_plotly_json(), layout)]
    counts = [_size(each) if each.get('mode') == 'markers' else 0 for each in traces]
    # Selected trials are never left out.
    counts = [0 if e.get('meta') == SELECTED else n for e, n in zip(traces, counts, strict=True)]
    if (total := sum(counts)) > MAX_POINTS:
        for trace, count in zip(traces, counts, strict=True):
            if count:
                _thin(trace, count, max(1, MAX_POINTS * count // total))
        _remark(layout, f'{MAX_POINTS:,} of {total:,} points are drawn')
    return go.Figure(traces, layout)


def _in_svg(trace: Json, layout: Json) -> list[Json]:
    if trace['type'] == 'parcoords':
        return list(_parallel(trace, layout))
    if trace['type'] == 'scattergl':
        trace['type'] = 'scatter'
    if isinstance(y := trace.get('y'), np.ndarray):
        trace['y'] = _short(y)
    if trace.get('mode') == 'lines+markers' and _size(trace) > _MAX_MARKED:
        trace['mode'] = 'lines'
    return [trace]


def _short(values: np.ndarray) -> np.ndarray:
    """Returns many numbers with the seven digits that a figure can show: half the bytes."""
    is_float = values.dtype == np.float64 and values.size >= _MANY
    if not is_float or not np.nanmax(np.abs(values)) < np.finfo(np.float32).max:
        return values
    return values.astype(np.float32)


def _size(trace: Json) -> int:
    x = trace.get('x')
    return 0 if x is None else len(x)


def _thin(trace: Json, count: int, most: int) -> None:
    kept = np.zeros(count, bool)
    kept[thinned(count, most)] = True
    trace.update(with_points(trace, kept))


def _remark(layout: Json, message: str) -> None:
    title = layout.setdefault('title', {})
    title['text'] = f'{title.get("text", "")}<br><i>({message})</i>'
    # The line is added to a figure that has its size.
    margin, pad = layout.setdefault('margin', {}), title.setdefault('pad', {})
    margin['t'], pad['t'] = margin.get('t', 64) + 18, pad.get('t', 14) + 11


def _parallel(trace: Json, layout: Json) -> Iterator[Json]:
    """Draws parallel coordinates as lines, by color: the best last, on top."""
    dimensions, line = trace['dimensions'], trace['line']
    colors = np.asarray(line['color'], float)
    places = np.stack([_scaled(each) for each in dimensions], axis=1)
    ids = np.asarray(trace['customdata'])
    order = np.argsort(colors, kind='stable')
    if not line.get('reversescale'):  # Less is better.
        order = order[::-1]
    if len(order) > _MAX_PARALLEL_LINES:
        half = _MAX_PARALLEL_LINES // 2
        others = order[:-half]
        order = np.append(others[thinned(len(others), half)], order[-half:])
        _remark(layout, f'{_MAX_PARALLEL_LINES:,} lines are drawn')
    scale = sample_colorscale('Viridis_r', _COLORS)
    texts = [_texts(each) for each in dimensions]
    selected = [np.flatnonzero(ids == number) for number in trace.get('meta') or ()]
    groups = [*zip(np.array_split(order, _COLORS), scale, strict=True)]
    groups += zip(selected, itertools.cycle(HIGHLIGHTS))
    for place, (group, color) in enumerate(groups):
        if not len(group):
            continue
        is_selected = place >= _COLORS
        gaps = np.full((len(group), 1), np.nan)
        steps = np.append(np.arange(len(dimensions), dtype=float), np.nan)
        yield {
            'type': 'scatter',
            'mode': 'lines',
            'x': np.tile(steps, len(group)),
            'y': np.append(places[group], gaps, axis=1).ravel(),
            'line': {'color': color, 'width': 3 if is_selected else 1.2},
            'opacity': 1.0 if is_selected else PALE if selected else 0.6,
            'customdata': np.repeat(ids[group], len(dimensions) + 1),
            'hovertext': [text for row in group for text in (*(t[row] for t in texts), '')],
            'hovertemplate': 'trial %{customdata}<br>%{hovertext}<extra></extra>',
            'showlegend': False,
        }
    _draw_axes(dimensions, layout)


def _scaled(dimension: Json) -> np.ndarray:
    """The values of an axis, from 0 at its lower end to 1."""
    low, high = dimension['range']
    scaled: np.ndarray = (np.asarray(dimension['values'], float) - low) / ((high - low) or 1.0)
    return scaled


def _texts(dimension: Json) -> list[str]:
    """The text under the pointer: the name of the tick there, or the number."""
    names = dict(zip(map(float, dimension['tickvals']), dimension['ticktext'], strict=True))
    is_log = dimension.get('name') == 'log'
    is_choice = dimension.get('name') == 'choice'

    def text(value: float) -> str:
        known = names.get(value)
        if known is not None and (is_choice or known == 'inactive'):
            return known
        return number(10.0**value if is_log else value)

    return [f'{dimension["label"]}: {text(float(each))}' for each in dimension['values']]


def _draw_axes(dimensions: Sequence[Json], layout: Json) -> None:
    """Draws an upright axis for each dimension, with its ticks and its name."""
    shapes, notes = [*layout.get('shapes', ())], [*layout.get('annotations', ())]
    for index, each in enumerate(dimensions):
        shapes.append(
            {
                'type': 'line',
                'x0': index,
                'x1': index,
                'y0': 0,
                'y1': 1,
                'line': {'color': '#5b6676', 'width': 1},
            }
        )
        base = {'x': index, 'showarrow': False, 'bgcolor': 'rgba(255,255,255,0.7)'}
        name = {'yref': 'paper', 'yanchor': 'bottom', 'xanchor': 'left', 'textangle': -20}
        notes.append(base | name | {'y': 1.02, 'text': each['label']})
        side = {'xanchor': 'right', 'xshift': -4}
        if index == len(dimensions) - 1:
            side = {'xanchor': 'left', 'xshift': 4}
        ticks = {**each, 'values': each['tickvals']}
        for place, text in zip(_scaled(ticks), each['ticktext'], strict=True):
            style = {'y': float(place), 'font': {'size': 10}, **side}
            notes.append(base | style | {'text': text})
    layout['shapes'], layout['annotations'] = shapes, notes
    last = len(dimensions) - 1
    layout['xaxis'] = {'visible': False, 'range': [-0.5, last + 0.5], 'fixedrange': True}
    layout['yaxis'] = {'visible': False, 'range': [-0.03, 1.03], 'fixedrange': True}
    layout['hovermode'] = 'closest'
    # The last name slopes to the right.
    longest = min(len(dimensions[-1]['label']), 30)
    layout['margin'] = {'t': 124, 'b': 24, 'l': 32, 'r': max(32, 6 * longest - 30)}
