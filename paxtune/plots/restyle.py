"""Changes of a finished figure: its scales, the trials that stand out, the trials left out."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from trainer.command import counted

if TYPE_CHECKING:
    import plotly.graph_objects as go

Scale: TypeAlias = Literal['linear', 'log']

SCALES: dict[str, Scale] = {'linear': 'linear', 'log': 'log'}
"""The scales by name."""

SELECTED = 'selected'
"""The `meta` of traces of trials that stand out."""

HIGHLIGHTS = (
    '#d62728',
    '#1f77b4',
    '#2ca02c',
    '#9467bd',
    '#ff7f0e',
    '#17becf',
    '#e377c2',
    '#8c564b',
)
"""The colors of trials that stand out."""

PALE = 0.2
"""The opacity of other trials where some stand out."""

_MAX_NAMED = 12  # More trials that stand out share a trace.
_BY_POINT = ('x', 'y', 'customdata', 'hovertext', 'text')


def restyled(
    figure: 'go.Figure',
    x_scale: Scale | None = None,
    y_scale: Scale | None = None,
    trials: Sequence[int] = (),
    hidden: Collection[int] = (),
) -> 'go.Figure':
    """Returns a figure of `paxtune.plots` with other scales, or with trials that stand out.

    Args:
        figure: the figure, which stays as it is.
        x_scale: of all horizontal axes of numbers; as they are by default. Axes of choices and
            of times have none. The title counts the points that a logarithmic scale cannot show.
        y_scale: the same of all vertical axes.
        trials: numbers of trials that stand out; the others are pale.
        hidden: numbers of trials that are left out.

    Example:
        >>> import paxtune, pyglove as pg
        >>> space = {'x': pg.floatv(1.0, 2.0)}
        >>> study = paxtune.tune(lambda x: x, space=space, objective='minimize', num_trials=8)
        >>> restyled(paxtune.plots.history(study), y_scale='log').layout.yaxis.type
        'log'
    """
    import plotly.graph_objects as go

    if not (x_scale or y_scale or trials or hidden):
        return figure
    layout = figure.layout.to_plotly_json()
    traces = [each.to_plotly_json() for each in figure.data]
    if hidden:
        traces = [with_points(each, ~np.isin(_ids(each), [*hidden])) for each in traces]
        for name, axis in layout.items():
            # A range of all trials would be too large.
            if name.startswith('yaxis') and axis.get('visible') is not False:
                axis.pop('range', None)
    if trials:
        traces = [new for each in traces for new in _emphasized(each, trials)]
    lost = 0
    for letter, scale in (('x', x_scale), ('y', y_scale)):
        if scale is not None:
            lost += _rescale(layout, traces, letter, scale)
    if lost:
        title = layout.setdefault('title', {})
        remark = f'{counted(lost, "point")} at or below 0 cannot be shown'
        title['text'] = f'{title.get("text", "")} <i>({remark})</i>'
    return go.Figure(traces, layout)


def _ids(trace: dict[str, Any]) -> np.ndarray:
    """The trial of each point, the first number about it; empty for traces without trials."""
    about = trace.get('customdata')
    if not isinstance(about, list | tuple | np.ndarray) or not len(about):
        return np.array([], float)
    numbers = np.asarray(about, float)
    return numbers if numbers.ndim == 1 else numbers[:, 0]


def with_points(trace: dict[str, Any], kept: np.ndarray) -> dict[str, Any]:
    """Returns a trace with some of its points; a trace without trials stays as it is."""
    if not len(kept) or kept.all():
        return trace
    found = trace | {name: _some(trace.get(name), kept) for name in _BY_POINT if name in trace}
    for part in ('marker', 'line'):
        if isinstance(style := trace.get(part), dict):
            found[part] = {name: _some(value, kept) for name, value in style.items()}
    if 'dimensions' in trace:
        found['dimensions'] = [
            each | {'values': _some(each['values'], kept)} for each in trace['dimensions']
        ]
    return found


def _some(values: Any, kept: np.ndarray) -> Any:
    if not isinstance(values, list | tuple | np.ndarray) or len(values) != len(kept):
        return values
    if isinstance(values, np.ndarray):
        return values[kept]
    return [value for value, is_kept in zip(values, kept, strict=True) if is_kept]


def _emphasized(trace: dict[str, Any], trials: Sequence[int]) -> list[dict[str, Any]]:
    """Makes a trace pale, and adds a trace for each trial that stands out."""
    ids = _ids(trace)
    if not len(ids):
        return [trace]
    if 'dimensions' in trace:  # Parallel coordinates: a brush on the numbers of trials.
        ranges = [[each - 0.5, each + 0.5] for each in trials if each in ids] or [[-2, -1]]
        axis = {
            'label': 'trial', 'values': ids, 'constraintrange': ranges,
            'range': [float(ids.min()), float(ids.max())],
            'tickvals': [float(ids.min()), float(ids.max())],
            'ticktext': [f'{ids.min():.0f}', f'{ids.max():.0f}'],
        }  # fmt: skip
        return [trace | {'dimensions': [axis, *trace['dimensions']], 'meta': [*trials]}]
    found = [trace | {'opacity': PALE}]
    groups = [[each] for each in trials] if len(trials) <= _MAX_NAMED else [[*trials]]
    for place, numbers in enumerate(groups):
        kept = np.isin(ids, numbers)
        if not kept.any():
            continue
        own = dict(with_points(trace, kept))
        color = HIGHLIGHTS[place % len(HIGHLIGHTS)]
        has_lines = 'lines' in trace.get('mode', '')
        own |= {'opacity': 1.0, 'meta': SELECTED, 'name': _name(numbers)}
        own |= {'showlegend': has_lines, 'legendgroup': _name(numbers)}
        marker = {**own.get('marker', {}), 'color': color, 'showscale': False}
        if not has_lines:
            marker |= {'size': 11, 'line': {'color': '#1c2430', 'width': 1.5}}
        own['marker'] = marker
        if has_lines:
            own['line'] = {**own.get('line', {}), 'color': color, 'width': 3}
        found.append(own)
    return found


def _name(trials: Sequence[int]) -> str:
    return f'trial {trials[0]}' if len(trials) == 1 else f'{len(trials)} selected trials'


def _rescale(
    layout: dict[str, Any], traces: Sequence[dict[str, Any]], letter: str, scale: Scale
) -> int:
    """Sets the scale of the axes of numbers; returns the number of points that are lost."""
    drawn: dict[str, list[np.ndarray]] = {}
    for each in traces:
        if each.get(letter) is not None:
            owner = each.get(f'{letter}axis', letter)
            drawn.setdefault(owner, []).append(np.asarray(each[letter]))
    lost = 0
    for owner, numbers in drawn.items():
        axis = layout.setdefault(f'{letter}axis{owner.removeprefix(letter)}', {})
        if axis.get('visible') is False or 'tickvals' in axis:
            continue
        if not all(each.dtype.kind in 'fiu' for each in numbers):
            continue  # Times, or names.
        if scale == 'log':
            low = [int((each <= 0).sum()) for each in numbers]
            if sum(low) == sum(each.size for each in numbers):
                continue  # Nothing would be left.
            lost += sum(low)
        if axis.get('type', 'linear') != scale:
            for key in ('range', 'dtick', 'tickformat', 'rangemode'):
                axis.pop(key, None)
        axis['type'] = scale
    return lost
