"""Figures of the Gaussian process of a study: cross-validation, effects and Sobol indices."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paxtune.analysis import effects as analysis
from paxtune.analysis import surrogate
from paxtune.analysis.decision_columns import MAX_DECISIONS
from paxtune.analysis.effects import Effect, Sensitivity, Values
from paxtune.analysis.surrogate import Predictions, Surrogate
from paxtune.analysis.trial_values import NoValuesError, axis_for
from paxtune.plots import layout
from paxtune.study.record import Status

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.search_space.space import Space
    from paxtune.study.study_view import StudyView

_COLUMNS = 3
_FILL = 'rgba(31, 119, 180, 0.2)'


@layout.or_text
def effects(
    study: 'StudyView', reward: str | None = None, decisions: Sequence[str] | None = None
) -> 'go.Figure':
    """Draws the predictions of a model along each decision of the best trial, with 95 % intervals.

    The other decisions stay as in the best trial, which a dotted line marks.
    """
    model = model_of(study, reward)
    if decisions is None:
        paths = analysis.largest_effects(model, study.space)[:MAX_DECISIONS]
    else:
        paths = [study.space.named(each) for each in decisions]
    found = [
        each for path in paths if (each := analysis.effect(model, study.space, path)) is not None
    ]
    if not found:
        raise NoValuesError('The best trial has none of these decisions.')
    width = min(len(found), _COLUMNS)
    drawn = layout.grid(width, len(found), shared_yaxes=True)
    for index, each in enumerate(found):
        place = layout.place(index, width)
        for trace in _traces(each):
            drawn.add_trace(trace, **place)
        drawn.add_vline(each.values.best, line={'dash': 'dot', 'color': layout.BEST}, **place)
        drawn.update_xaxes(_axis(study.space, each.values), **place)
    drawn.update_yaxes(title=layout.text(model.axis.name, 30), col=1)
    drawn.update_layout(title=f'Predictions around trial {model.best.id}', showlegend=False)
    return drawn


@layout.or_text
def surface(
    study: 'StudyView', x: str | None = None, y: str | None = None, reward: str | None = None
) -> 'go.Figure':
    """Draws the predictions of a model over two decisions of the best trial, and their uncertainty.

    The other decisions stay as in the best trial, which a cross marks.
    """
    from plotly.subplots import make_subplots

    model = model_of(study, reward)
    named = [each and study.space.named(each) for each in (x, y)]
    others = iter(
        [each for each in analysis.largest_effects(model, study.space) if each not in named]
    )
    pair = [each or next(others, None) for each in named]
    if pair[0] is None or pair[1] is None:
        raise NoValuesError('A surface needs two decisions.')
    found = analysis.surface(model, study.space, pair[0], pair[1])
    if found is None:
        raise NoValuesError('The best trial lacks one of these decisions.')
    titles = (layout.text(model.axis.name), 'width of the interval of 95 %')
    drawn = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.25)
    for column, values in ((1, found.mean), (2, found.width)):
        place = {'row': 1, 'col': column}
        is_reversed = column == 1 and not model.axis.is_maximized
        drawn.add_trace(_plane(found, values, is_reversed, 0.38 if column == 1 else 1.01), **place)
        drawn.add_trace(_best(found), **place)
        drawn.update_xaxes(_axis(study.space, found.x), **place)
        drawn.update_yaxes(_axis(study.space, found.y), **place)
    drawn.update_layout(template='plotly_white', showlegend=False)
    return drawn


@layout.or_text
def sensitivity(study: 'StudyView', reward: str | None = None) -> 'go.Figure':
    """Draws the Sobol indices of decisions: shares of the variance of the predictions of a model.

    The first order counts a decision alone, the total its interactions, too. Arrows say if larger
    numbers have larger (↑) or smaller (↓) values.
    """
    model = model_of(study, reward)
    found = analysis.sensitivities(model)[: 2 * MAX_DECISIONS]
    names = [layout.text(study.space.short_names[each.path], 30) + _arrow(each) for each in found]
    drawn = layout.bars(
        f'Sensitivity of {layout.text(model.axis.name)}',
        [each.path for each in found],
        names,
        ('total', [each.total for each in found]),
        ('first order', [each.first for each in found]),
    )
    drawn.update_xaxes(title='share of the variance')
    return drawn


def _arrow(found: Sensitivity) -> str:
    if np.isnan(found.trend) or abs(found.trend) < 0.1:
        return ''
    return ' ↑' if found.trend > 0 else ' ↓'


def _axis(space: 'Space', values: Values) -> dict[str, Any]:
    return layout.decision_axis(space.short_names[values.path], values.labels, values.is_log)


def _traces(found: Effect) -> list[Any]:
    x, predicted = found.values.numbers, found.predicted
    color = layout.COLORS[Status.COMPLETED]
    hover = '%{x}: %{y:.6g}<extra></extra>'
    if found.values.labels:
        ends = {
            'array': predicted.high - predicted.mean,
            'arrayminus': predicted.mean - predicted.low,
        }
        style = {'marker': {'color': color, 'size': 9}, 'error_y': ends, 'hovertemplate': hover}
        return [layout.scatter(0, x=x, y=predicted.mean, mode='markers', **style)]
    band = {'mode': 'lines', 'line': {'width': 0}, 'hoverinfo': 'skip'}
    return [
        layout.scatter(0, x=x, y=predicted.low, **band),
        layout.scatter(0, x=x, y=predicted.high, fill='tonexty', fillcolor=_FILL, **band),
        layout.scatter(
            0, x=x, y=predicted.mean, mode='lines', line={'color': color}, hovertemplate=hover
        ),
    ]


def _plane(found: analysis.Surface, values: np.ndarray, is_reversed: bool, bar: float) -> Any:
    import plotly.graph_objects as go

    is_choice = bool(found.x.labels or found.y.labels)
    style: dict[str, Any] = {} if is_choice else {'line': {'width': 0.5}}
    return (go.Heatmap if is_choice else go.Contour)(
        x=found.x.numbers,
        y=found.y.numbers,
        z=values,
        colorscale='Viridis',
        reversescale=is_reversed,
        colorbar={'x': bar, 'thickness': 12},
        hovertemplate='%{x}, %{y}: %{z:.6g}<extra></extra>',
        **style,
    )


def _best(found: analysis.Surface) -> Any:
    return layout.scatter(
        0,
        x=[found.x.best],
        y=[found.y.best],
        mode='markers',
        marker={'symbol': 'x', 'size': 11, 'color': layout.BEST},
        hoverinfo='skip',
    )


_NO_MODEL = (
    f'A model needs {surrogate.MIN_TRIALS} completed trials with different values, and 1 to 300 '
    'decisions.'
)


@layout.or_text
def cross_validation(study: 'StudyView', reward: str | None = None) -> 'go.Figure':
    """Draws the final value of each trial over its prediction by a model that has not seen it.

    The model is the Gaussian process of the default algorithm. Lines are intervals of 95 %. The
    closer the points are to the diagonal, the better a search with the model can choose.
    """
    model = model_of(study, reward)
    found = model.cross_validate()
    drawn = layout.figure(
        f'Predictions without the trial itself: R² {found.r_squared:.2f}, '
        f'{found.coverage:.0%} of {len(found.observed)} within 95 %'
    )
    ends = [float(np.min(found.observed)), float(np.max(found.observed))]
    line = {'color': layout.MUTED, 'dash': 'dot'}
    drawn.add_trace(
        layout.scatter(0, x=ends, y=ends, mode='lines', line=line, hoverinfo='skip', name='equal')
    )
    drawn.add_trace(
        layout.scatter(
            len(found.observed),
            x=found.observed,
            y=found.predicted.mean,
            error_y=_interval(found.predicted),
            mode='markers',
            marker={'color': layout.COLORS[Status.COMPLETED]},
            name='trials',
            customdata=[trial.id for trial in found.trials],
            hovertemplate='trial %{customdata}: %{x:.6g}, predicted %{y:.6g}<extra></extra>',
        )
    )
    name, scale = layout.text(found.axis.name), layout.scale(found.observed)
    drawn.update_xaxes(title=f'{name}, observed', type=scale)
    drawn.update_yaxes(title=f'{name}, predicted', type=_scale_of(scale, found.predicted.mean))
    drawn.update_layout(showlegend=False)
    return drawn


def model_of(study: 'StudyView', reward: str | None) -> Surrogate:
    """The model of a study; NoValuesError if it has no reward, or too few trials."""
    axis_for(study, reward)
    if (model := surrogate.fitted(study, reward)) is None:
        raise NoValuesError(_NO_MODEL)
    return model


def _interval(found: Predictions) -> dict[str, Any]:
    return {
        'type': 'data',
        'array': found.high - found.mean,
        'arrayminus': found.mean - found.low,
        'color': layout.MUTED,
        'thickness': 1,
        'width': 0,
    }


def _scale_of(scale: str, values: np.ndarray) -> str:
    return scale if (values > 0).all() else 'linear'
