"""Figures of trials by the Gaussian process of a study: how well it predicts, and what."""

from typing import TYPE_CHECKING, Any

import numpy as np

from paxtune.analysis import surrogate
from paxtune.analysis.improvement import improvements
from paxtune.analysis.surrogate import Predictions, Surrogate
from paxtune.plots import layout
from paxtune.study.record import Status

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study_view import StudyView

_NO_MODEL = (
    f'A model needs {surrogate.MIN_TRIALS} completed trials with different values, and 1 to 300 '
    'decisions.'
)


def cross_validation(study: 'StudyView', reward: str | None = None) -> 'go.Figure':
    """Draws the final value of each trial over its prediction by a model that has not seen it.

    The model is the Gaussian process of the default algorithm. Lines are intervals of 95 %. The
    closer the points are to the diagonal, the better a search with the model can choose.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.

    Raises:
        UserError: there is no such reward or metric.
    """
    model = model_of(study, reward)
    if model is None:
        return without_model(study, reward)
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


def predictions(study: 'StudyView', reward: str | None = None) -> 'go.Figure':
    """Draws each completed trial as observed, and as a model of all trials sees it.

    The model separates noise from effects: it predicts a lucky trial worse than it was observed.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.

    Raises:
        UserError: there is no such reward or metric.
    """
    model = model_of(study, reward)
    if model is None:
        return without_model(study, reward)
    found = model.predict(model.rows(model.trials))
    ids = [trial.id for trial in model.trials]
    drawn = layout.figure('Trials, observed and predicted')
    shared: dict[str, Any] = {'x': ids, 'mode': 'markers', 'customdata': ids}
    drawn.add_trace(
        layout.scatter(
            len(ids),
            **shared,
            y=found.mean,
            error_y=_interval(found),
            marker={'color': layout.COLORS[Status.COMPLETED]},
            name='predicted, 95 %',
            hovertemplate='trial %{x}: predicted %{y:.6g}<extra></extra>',
        )
    )
    drawn.add_trace(
        layout.scatter(
            len(ids),
            **shared,
            y=model.values,
            marker={'color': layout.BEST, 'symbol': 'x-thin-open', 'size': 8},
            name='observed',
            hovertemplate='trial %{x}: observed %{y:.6g}<extra></extra>',
        )
    )
    drawn.update_xaxes(title='trial')
    scale = _scale_of(layout.scale(model.values), found.mean)
    drawn.update_yaxes(title=layout.axis_title(model.axis), type=scale)
    return drawn


def feasibility(study: 'StudyView', reward: str | None = None) -> 'go.Figure':
    """Draws the probability that each trial is feasible, over its predicted value.

    The model is that of all trials. Infeasible trials have a predicted value, too.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.

    Raises:
        UserError: there is no such reward or metric.
    """
    model = model_of(study, reward)
    if model is None:
        return without_model(study, reward)
    if not model.infeasible:
        return layout.empty('No trial is infeasible.')
    drawn = layout.figure('Feasibility')
    for status, trials in (
        (Status.COMPLETED, model.trials),
        (Status.INFEASIBLE, model.infeasible),
    ):
        found = model.predict(model.rows(trials))
        drawn.add_trace(
            layout.scatter(
                len(trials),
                x=found.mean,
                y=found.feasible,
                mode='markers',
                marker={'color': layout.COLORS[status]},
                name=str(status),
                customdata=[trial.id for trial in trials],
                hovertemplate='trial %{customdata}: %{y:.1%}, predicted %{x:.6g}<extra></extra>',
            )
        )
    drawn.update_xaxes(title=f'{layout.axis_title(model.axis)}, predicted')
    drawn.update_yaxes(title='probability of feasibility', tickformat='.0%', range=[-0.02, 1.02])
    return drawn


def improvement(study: 'StudyView', reward: str | None = None) -> 'go.Figure':
    """Draws the room for improvement that a model sees after more and more trials, and its error.

    Once the room is below the error, more trials can hardly show a gain. Each
    point is a fit of its own: the figure takes some seconds.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.

    Raises:
        UserError: there is no such reward or metric.
    """
    if reward is None and not study.rewards:
        return without_model(study, reward)
    axis, found = improvements(study, reward)
    if not found:
        return without_model(study, reward)
    drawn = layout.figure('Room for improvement')
    ids = [each.trial.id for each in found]
    for name, values, color in (
        ('room, 95 %', [each.room for each in found], layout.COLORS[Status.COMPLETED]),
        ('error of predictions', [each.error for each in found], layout.BEST),
    ):
        line = {'color': color}
        drawn.add_trace(
            layout.scatter(0, x=ids, y=values, mode='lines+markers', line=line, name=name)
        )
    drawn.update_xaxes(title='trial')
    drawn.update_yaxes(title=layout.text(axis.name), type='log')
    return drawn


def model_of(study: 'StudyView', reward: str | None) -> Surrogate | None:
    """The model of a study; None if it has no reward, or too few trials."""
    if reward is None and not study.rewards:
        return None
    return surrogate.fitted(study, reward)


def without_model(study: 'StudyView', reward: str | None) -> 'go.Figure':
    """A figure of the reason why there is no model."""
    return layout.empty(layout.NO_REWARD if reward is None and not study.rewards else _NO_MODEL)


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
