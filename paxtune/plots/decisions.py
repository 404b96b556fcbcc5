"""Figures of decisions: importance, parallel coordinates, slices and contours."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paxtune.analysis import importance
from paxtune.plots import data, layout
from paxtune.plots.data import DecisionColumn, Values
from paxtune.study.record import Status

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study_view import StudyView

_SLICE_COLUMNS = 3
_MOST_POINTS = 30_000  # Of a figure of slices.
_MOST_LINES = 5000  # Of parallel coordinates.
_LEAST_CELLS, _MOST_CELLS = 6, 25  # Of a contour, along each axis.
_MOST_TICKS = 20
_BLUES = [[0.0, '#a6c8e4'], [1.0, '#08306b']]


def importances(study: 'StudyView', reward: str | None = None) -> 'go.Figure':
    """Draws the importance of decisions: fANOVA, and mean decrease in impurity.

    See `paxtune.analysis.importance`.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.

    Raises:
        UserError: there is no such reward or metric.
    """
    if reward is None and not study.rewards:
        return layout.empty(layout.NO_REWARD)
    return importance_figure(study, importance.importances(study, reward))


def importance_figure(study: 'StudyView', found: 'importance.Importances') -> 'go.Figure':
    """Draws importance that was computed before."""
    import plotly.graph_objects as go

    if not found.decisions:
        least = importance.MIN_TRIALS
        return layout.empty(f'Importance needs {least} completed trials with different rewards.')
    ranked = found.decisions[: 2 * data.MOST_DECISIONS][::-1]
    # Positions, since two decisions may have the same short name once it is cut.
    rows = list(range(len(ranked)))
    drawn = layout.figure(
        f'Importance for {layout.text(found.axis.name)}, of {found.num_trials} completed trials'
    )
    paths = [layout.text(each.path, 200) for each in ranked]
    for name, shares, color in (
        ('mean decrease in impurity', [each.impurity for each in ranked], layout.MUTED),
        ('fANOVA', [each.fanova for each in ranked], layout.COLORS[Status.COMPLETED]),
    ):
        drawn.add_trace(
            go.Bar(
                x=shares,
                y=rows,
                orientation='h',
                name=name,
                marker={'color': color},
                hovertext=paths,
                hovertemplate='%{hovertext}<br>%{x:.1%}<extra></extra>',
            )
        )
    names = [layout.text(study.space.short_names[each.path], 30) for each in ranked]
    drawn.update_yaxes(tickvals=rows, ticktext=names, automargin=True)
    drawn.update_xaxes(title='share', tickformat='.0%', rangemode='tozero')
    drawn.update_layout(legend_traceorder='reversed', height=200 + 30 * len(ranked))
    return drawn


def parallel_coordinates(
    study: 'StudyView', reward: str | None = None, decisions: Sequence[str] | None = None
) -> 'go.Figure':
    """Draws each trial with a final value as a line through its decisions.

    Inactive decisions have a tick of their own, below all values. Of more than 5000 trials, the
    best half of 5000 and evenly spaced others are drawn.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.
        decisions: paths or short names; the 10 most important ones by default.

    Raises:
        UserError: there is no such reward, metric or decision.
    """
    import plotly.graph_objects as go

    found = data.final_values(study, reward)
    if found is None or not len((found := found.measured()).values):
        return layout.empty(layout.NO_REWARD if found is None else layout.NOT_COMPLETED)
    rows = _best_and_others(found, _MOST_LINES)
    found = Values(found.axis, [found.trials[row] for row in rows], found.values[rows])
    columns = data.decision_columns(study.space, found.trials)
    columns = data.selected(study, columns, decisions, reward)
    values = found.values
    is_log = layout.is_log(values)
    dimensions = [_dimension(column) for column in columns]
    dimensions.append(_number_dimension(found.axis.name, values, is_log))
    drawn = layout.figure('Decisions' + _count(len(rows), study))
    drawn.add_trace(
        go.Parcoords(
            dimensions=dimensions,
            customdata=[trial.id for trial in found.trials],
            line={
                'color': np.log10(values) if is_log else values,
                'colorscale': 'Viridis',
                'reversescale': found.axis.is_maximized,  # The best are dark.
                'showscale': False,
            },
            labelangle=-15,
        )
    )
    drawn.update_layout(margin={'t': 140, 'l': 90, 'r': 90})
    return drawn


def slices(
    study: 'StudyView', reward: str | None = None, decisions: Sequence[str] | None = None
) -> 'go.Figure':
    """Draws the final values of trials over each decision.

    Of many trials, the best ones and evenly spaced others are drawn, 30,000 points in all.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.
        decisions: paths or short names; the 10 most important ones by default.

    Raises:
        UserError: there is no such reward, metric or decision.
    """
    from plotly.subplots import make_subplots

    found = data.final_values(study, reward)
    if found is None or not len((found := found.measured()).values):
        return layout.empty(layout.NO_REWARD if found is None else layout.NOT_COMPLETED)
    columns = data.decision_columns(study.space, found.trials)
    columns = data.selected(study, columns, decisions, reward)
    rows = _best_and_others(found, _MOST_POINTS // max(len(columns), 1))
    ids = np.array([each.id for each in found.trials])
    statuses = [str(each.status) for each in found.trials]
    width = min(_SLICE_COLUMNS, len(columns))
    height = -(-len(columns) // width)
    drawn = make_subplots(height, width, shared_yaxes=True, vertical_spacing=0.3 / height)
    for index, column in enumerate(columns):
        place = {'row': index // width + 1, 'col': index % width + 1}
        active = rows[np.isfinite(column.values[rows])]
        drawn.add_trace(
            layout.scatter(
                len(rows) * len(columns),
                x=column.values[active],
                y=found.values[active],
                mode='markers',
                marker={
                    'size': 5,
                    'color': ids[active],
                    'colorscale': _BLUES,
                    'cmin': 1,
                    'cmax': int(ids.max()),
                    'showscale': index == 0,
                    'colorbar': {'title': 'trial', 'thickness': 14, 'len': 280, 'lenmode': 'pixels'}
                    | {'y': 1.0, 'yanchor': 'top'},
                },
                customdata=ids[active],
                text=[statuses[row] for row in active] if len(active) <= 1000 else None,
                hovertemplate='trial %{customdata} %{text}<br>%{x}<br>%{y}<extra></extra>',
                showlegend=False,
            ),
            **place,
        )
        drawn.update_xaxes(_axis(column), **place)
    drawn.update_yaxes(type=layout.scale(found.values), range=_padded(found.values))
    drawn.update_yaxes(title=layout.axis_title(found.axis), col=1)
    drawn.update_layout(
        template='plotly_white',
        title='Slices' + _count(len(rows), study),
        height=150 + 280 * height,
    )
    return drawn


def contour(
    study: 'StudyView', x: str | None = None, y: str | None = None, reward: str | None = None
) -> 'go.Figure':
    """Draws the mean final value over two decisions, and the trials.

    The plane is divided into cells, of which those with trials have a mean; between numbers, plotly
    interpolates.

    Args:
        study: the study.
        x: a decision by its path or short name; the most important one by default.
        y: another one; the most important other one by default.
        reward: a reward by its label, or a metric; the first reward by default.

    Raises:
        UserError: there is no such reward, metric or decision.
    """
    found = data.final_values(study, reward)
    if found is None or not len((found := found.measured()).values):
        return layout.empty(layout.NO_REWARD if found is None else layout.NOT_COMPLETED)
    columns = data.decision_columns(study.space, found.trials)
    pair = _pair(study, columns, x, y, reward)
    if len(pair) < 2:
        return layout.empty('A contour needs two decisions.')
    active = np.flatnonzero(np.isfinite(pair[0].values) & np.isfinite(pair[1].values))
    if not len(active):
        return layout.empty('No trial with a final value has both decisions.')
    values, ids = found.values[active], np.array([trial.id for trial in found.trials])
    drawn = layout.figure(f'Contour of {layout.axis_title(found.axis)}')
    drawn.add_trace(_surface(pair, active, values, found.axis.is_maximized))
    marks = active[_best_and_others(Values(found.axis, [], values), _MOST_LINES)]
    drawn.add_trace(
        layout.scatter(
            len(marks),
            x=pair[0].values[marks],
            y=pair[1].values[marks],
            mode='markers',
            marker={'size': 5, 'color': 'black', 'opacity': 0.5},
            customdata=np.stack([ids[marks], found.values[marks]], axis=1),
            hovertemplate='trial %{customdata[0]}: %{customdata[1]:.6g}<extra></extra>',
            showlegend=False,
        )
    )
    drawn.update_xaxes(_axis(pair[0]))
    drawn.update_yaxes(_axis(pair[1]), automargin=True)
    return drawn


def _pair(
    study: 'StudyView',
    columns: Sequence[DecisionColumn],
    x: str | None,
    y: str | None,
    reward: str | None,
) -> list[DecisionColumn]:
    named = {name: data.selected(study, columns, [name], reward)[0] for name in (x, y) if name}
    if x and y:  # Importance takes longer than the figure.
        return [named[x], named[y]]
    taken = [column.path for column in named.values()]
    ranked = data.selected(study, columns, None, reward, 2)
    others = iter([each for each in ranked if each.path not in taken])
    pair = [named[name] if name else next(others, None) for name in (x, y)]
    return [column for column in pair if column is not None]


def _surface(
    pair: Sequence[DecisionColumn], active: np.ndarray, values: np.ndarray, is_maximized: bool
) -> Any:
    import plotly.graph_objects as go

    # Cells of few trials would mostly be empty.
    cells = int(np.clip(len(active) ** 0.5, _LEAST_CELLS, _MOST_CELLS))
    edges = [_edges(column, cells) for column in pair]
    x, y = (_units(column, column.values[active]) for column in pair)
    bins: Any = [edge[1] for edge in edges]
    sums, _, _ = np.histogram2d(x, y, bins, weights=values)
    counts, _, _ = np.histogram2d(x, y, bins)
    with np.errstate(invalid='ignore', divide='ignore'):
        means = (sums / counts).T
    style: dict[str, Any] = {
        'x': edges[0][0],
        'y': edges[1][0],
        'z': means,
        'colorscale': 'Viridis',
        'reversescale': is_maximized,  # The best are dark.
        'hoverinfo': 'skip',
    }
    if any(column.labels for column in pair):
        return go.Heatmap(**style)
    return go.Contour(**style, connectgaps=True, line={'width': 0.5})


def _units(column: DecisionColumn, values: np.ndarray) -> np.ndarray:
    return np.log10(values) if column.is_log else values


def _edges(column: DecisionColumn, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the middles of cells, and their edges on the scale of the decision."""
    if column.labels:
        middles = np.arange(len(column.labels), dtype=float)
        return middles, np.arange(len(column.labels) + 1) - 0.5
    low, high = _units(column, np.array([column.low, column.high]))
    # Rounding must not push a bound out of its cell.
    margin = 1e-9 * max(abs(low), abs(high))
    edges = np.linspace(low - margin, high + margin, cells + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    return (10.0**middles if column.is_log else middles), edges


def _axis(column: DecisionColumn) -> dict[str, Any]:
    """The plotly axis of a decision."""
    about: dict[str, Any] = {'title': layout.text(column.name, 40)}
    if not column.labels:
        about |= {'type': 'log' if column.is_log else 'linear'}
        if column.is_log and column.high >= 100 * column.low:
            about |= {'dtick': 1, 'tickformat': '~g'}  # Powers of ten alone.
        return about
    ticks = layout.thinned(len(column.labels), _MOST_TICKS)
    return about | {
        'type': 'linear',
        'tickvals': ticks,
        'ticktext': [layout.text(column.labels[tick], 20) for tick in ticks],
        'range': [-0.5, len(column.labels) - 0.5],
    }


def _padded(values: np.ndarray) -> list[float]:
    """The range of an axis of values, the same for all subplots."""
    ends = np.array([values.min(), values.max()])
    low, high = np.log10(ends) if layout.is_log(values) else ends
    margin = 0.06 * (high - low) or 1.0
    return [float(low - margin), float(high + margin)]


def _dimension(column: DecisionColumn) -> dict[str, Any]:
    """The axis of a decision in parallel coordinates; inactive values lie below all others."""
    is_inactive = ~np.isfinite(column.values)
    if not column.labels:
        bounds = (column.low, column.high)
        return _number_dimension(column.name, column.values, column.is_log, bounds)
    ticks = layout.thinned(len(column.labels), _MOST_TICKS)
    names = [layout.text(column.labels[tick], 20) for tick in ticks]
    values, tickvals, low = column.values, ticks.tolist(), 0.0
    if is_inactive.any():
        values, low = np.where(is_inactive, -1.0, values), -1.0
        tickvals, names = [-1.0, *tickvals], ['inactive', *names]
    return {
        'name': 'choice',
        'label': layout.text(column.name, 25),
        'values': values,
        'tickvals': tickvals,
        'ticktext': names,
        'range': [low, max(column.high, low + 1.0)],
    }


def _number_dimension(
    name: str, values: np.ndarray, is_log: bool, bounds: tuple[float, float] | None = None
) -> dict[str, Any]:
    """The axis of numbers in parallel coordinates, which have no logarithmic scale themselves."""
    low, high = bounds or (float(np.nanmin(values)), float(np.nanmax(values)))
    ends = np.log10([low, high]) if is_log else np.array([low, high])
    places = np.log10(values) if is_log else values
    tickvals = np.linspace(ends[0], ends[1], 5) if ends[1] > ends[0] else ends[:1]
    numbers = 10.0**tickvals if is_log else tickvals
    names, bottom = [f'{each:.3g}' for each in numbers], ends[0]
    is_inactive = ~np.isfinite(places)
    if is_inactive.any():
        bottom = ends[0] - 0.15 * (ends[1] - ends[0])
        places = np.where(is_inactive, bottom, places)
        tickvals, names = np.append(bottom, tickvals), ['inactive', *names]
    return {
        'name': 'log' if is_log else 'linear',
        'label': layout.text(name, 25),
        'values': places,
        'tickvals': tickvals,
        'ticktext': names,
        'range': [bottom, ends[1] if ends[1] > bottom else bottom + 1.0],
    }


def _best_and_others(found: Values, most: int) -> np.ndarray:
    """Indices of at most so many values: the best half of them, and evenly spaced others."""
    count = len(found.values)
    if count <= most:
        return np.arange(count)
    order = np.argsort(-found.values if found.axis.is_maximized else found.values, kind='stable')
    half = most // 2
    others = order[half:]
    return np.sort(np.append(order[:half], others[layout.thinned(len(others), most - half)]))


def _count(count: int, study: 'StudyView') -> str:
    total = len(study.trials)
    return '' if count == total else f': {count:,} of {total:,} trials'
