"""Figures of coordinate checks and scaling laws, with plotly."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paxtune.plots.layout import figure
from paxtune.scale.coordinates import LOGITS, RESIDUAL, Coordinate
from paxtune.scale.laws import LossLaw, Point

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PLAIN, _SCALED, _RUNS = '#d62728', '#1f77b4', '#7f7f7f'


def coordinate_figure(found: Sequence[Coordinate]) -> 'go.Figure':
    """Changes of activations over the width after the last step: flat lines transfer."""
    import plotly.graph_objects as go

    drawn = figure('Coordinate check', xaxis_title='width', yaxis_title='mean change')
    drawn.update_xaxes(type='log')
    drawn.update_yaxes(type='log')
    last = max(each.step for each in found)
    for activation, dash in ((RESIDUAL, 'solid'), (LOGITS, 'dash')):
        for is_scaled, color in ((False, _PLAIN), (True, _SCALED)):
            course = [
                each
                for each in found
                if (each.step, each.activation, each.is_scaled) == (last, activation, is_scaled)
            ]
            drawn.add_trace(
                go.Scatter(
                    x=[each.width for each in course],
                    y=[each.change for each in course],
                    name=f'{activation}, {"with" if is_scaled else "without"} width scaling',
                    line={'color': color, 'dash': dash},
                )
            )
    return drawn


def law_figure(points: Sequence[Point], law: LossLaw) -> 'go.Figure':
    """Losses over compute with the curve of each size of the model."""
    import numpy as np
    import plotly.graph_objects as go

    drawn = figure('Scaling law', xaxis_title='training FLOPs', yaxis_title='loss')
    drawn.update_xaxes(type='log')
    drawn.update_yaxes(type='log')
    for params in sorted({each.params for each in points}):
        own = [each for each in points if each.params == params]
        tokens = np.geomspace(min(p.tokens for p in own), max(p.tokens for p in own), 30)
        name, curve = f'{params:.3g} parameters', [law.loss(params, float(d)) for d in tokens]
        drawn.add_trace(go.Scatter(x=list(6 * params * tokens), y=curve, name=f'{name}, law'))
        drawn.add_trace(
            go.Scatter(
                x=[each.flops for each in own],
                y=[each.loss for each in own],
                name=name,
                mode='markers',
                marker={'color': _RUNS},
                showlegend=False,
            )
        )
    return drawn
