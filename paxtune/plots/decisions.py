"""Figures of decisions: importance, parallel coordinates, slices and contours."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paxtune.analysis import importance
from paxtune.analysis.decision_columns import (
    MAX_DECISIONS,
    DecisionColumn,
    decision_columns,
    pair_of,
    plane_of,
    selected,
)
from paxtune.analysis.trial_values import (
    NoValuesError,
    Values,
    axis_for,
    measured_values,
    thinned,
)
from paxtune.plots import layout

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study_view import StudyView

_SLICE_COLUMNS = 2
_MAX_POINTS = 30_000
_MAX_LINES = 5000
_BLUES = [[0.0, '#a6c8e4'], [1.0, '#08306b']]


@layout.or_text
def importances(study: 'StudyView', reward: str | None = None) -> 'go.Figure':
    """Draws the importance of decisions: fANOVA, and mean decrease in impurity.

    See `paxtune.analysis.importance`.
    """
    axis_for(study, reward)
    return importance_figure(study, importance.importances(study, reward))


@layout.or_text
def importance_figure(study: 'StudyView', found: 'importance.Importances') -> 'go.Figure':
    """Draws importance that was computed before."""
    if not found.decisions:
        least = importance.MIN_TRIALS
        raise NoValuesError(f'Importance needs {least} completed trials with different rewards.')
    ranked = found.decisions[: 2 * MAX_DECISIONS]
    drawn = layout.bars(
        f'Importance for {layout.text(found.axis.name)}, of {found.num_trials} completed trials',
        [each.path for each in ranked],
        [layout.text(study.space.short_names[each.path], 30) for each in ranked],
        ('mean decrease in impurity', [each.impurity for each in ranked]),
        ('fANOVA', [each.fanova for each in ranked]),
    )
    drawn.update_xaxes(title='share')
    return drawn


@layout.or_text
def parallel_coordinates(
    study: 'StudyView', reward: str | None = None, decisions: Sequence[str] | None = None
) -> 'go.Figure':
    """Draws each trial with a final value as a line through its decisions.

    Inactive decisions have a tick of their own, below all values. Of more than 5000 trials, the
    best half of 5000 and evenly spaced others are drawn.
    """
    import plotly.graph_objects as go

    found = measured_values(study, reward)
    found = found.of(found.best_and_others(_MAX_LINES))
    columns = decision_columns(study.space, found.trials)
    columns = selected(study, columns, decisions, reward)
    values = found.values
    is_log = layout.is_log(values)
    dimensions = [_dimension(column) for column in columns]
    dimensions.append(_number_dimension(found.axis.name, values, is_log))
    drawn = layout.figure('Decisions' + _count(len(found.trials), study))
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


@layout.or_text
def slices(
    study: 'StudyView', reward: str | None = None, decisions: Sequence[str] | None = None
) -> 'go.Figure':
    """Draws the final values of trials over each decision.

    Of many trials, the best ones and evenly spaced others are drawn, 30,000 points in all.
    """
    found = measured_values(study, reward)
    columns = decision_columns(study.space, found.trials)
    columns = selected(study, columns, decisions, reward)
    rows = found.best_and_others(_MAX_POINTS // max(len(columns), 1))
    ids = np.array([each.id for each in found.trials])
    statuses = [str(each.status) for each in found.trials]
    width = min(_SLICE_COLUMNS, len(columns))
    drawn = layout.grid(width, len(columns), shared_yaxes=True)
    for index, column in enumerate(columns):
        place = layout.place(index, width)
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
    drawn.update_layout(title='Slices' + _count(len(rows), study))
    return drawn


@layout.or_text
def contour(
    study: 'StudyView', x: str | None = None, y: str | None = None, reward: str | None = None
) -> 'go.Figure':
    """Draws the mean final value over two decisions, and the trials.

    The plane is divided into cells; cells with trials have a mean, and plotly interpolates between
    numbers.
    """
    found = measured_values(study, reward)
    columns = decision_columns(study.space, found.trials)
    pair = pair_of(study, columns, x, y, reward)
    if len(pair) < 2:
        raise NoValuesError('A contour needs two decisions.')
    active = np.flatnonzero(np.isfinite(pair[0].values) & np.isfinite(pair[1].values))
    if not len(active):
        raise NoValuesError('No trial with a final value has both decisions.')
    values, ids = found.values[active], np.array([trial.id for trial in found.trials])
    drawn = layout.figure(f'Contour of {layout.axis_title(found.axis)}')
    drawn.add_trace(_surface(pair, active, values, found.axis.is_maximized))
    marks = active[Values(found.axis, [], values).best_and_others(_MAX_LINES)]
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


def _surface(
    pair: Sequence[DecisionColumn], active: np.ndarray, values: np.ndarray, is_maximized: bool
) -> Any:
    import plotly.graph_objects as go

    plane = plane_of(pair, active, values)
    style: dict[str, Any] = {
        'x': plane.x,
        'y': plane.y,
        'z': plane.means,
        'colorscale': 'Viridis',
        'reversescale': is_maximized,  # The best are dark.
        'hoverinfo': 'skip',
    }
    if any(column.labels for column in pair):
        return go.Heatmap(**style)
    return go.Contour(**style, connectgaps=True, line={'width': 0.5})


def _axis(column: DecisionColumn) -> dict[str, Any]:
    about = layout.decision_axis(column.name, column.labels, column.is_log)
    if column.is_log and column.high >= 100 * column.low:
        about |= {'dtick': 1, 'tickformat': '~g'}  # Powers of ten alone.
    return about


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
    ticks = thinned(len(column.labels), layout.MAX_TICKS)
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


def _count(count: int, study: 'StudyView') -> str:
    total = len(study.trials)
    return '' if count == total else f': {count:,} of {total:,} trials'
