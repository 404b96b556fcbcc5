"""Cross-validation of the Gaussian process of a study."""

from typing import TYPE_CHECKING, Any

import numpy as np

from paxtune.analysis import surrogate
from paxtune.analysis.surrogate import Predictions, Surrogate
from paxtune.analysis.trial_values import NoValuesError, axis_for
from paxtune.plots import layout
from paxtune.study.record import Status

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study_view import StudyView

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
