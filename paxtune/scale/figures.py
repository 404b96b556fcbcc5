"""The figure of a coordinate check, with plotly."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paxtune.plots.layout import figure
from paxtune.scale.coordinates import LOGITS, RESIDUAL, Coordinate

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PLAIN, _SCALED = '#d62728', '#1f77b4'


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
