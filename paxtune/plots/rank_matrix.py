"""Ranks of trials over pairs of decisions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paxtune.plots import data, layout
from paxtune.plots.axes import decision_axis
from paxtune.plots.data import DecisionColumn, Values

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study_view import StudyView

_MOST_DECISIONS = 4
_MOST_POINTS = 5000  # Of all panels together.


def ranks(
    study: 'StudyView', reward: str | None = None, decisions: Sequence[str] | None = None
) -> 'go.Figure':
    """Draws the trials over each pair of decisions, colored by the rank of their final values.

    Ranks show where good trials are although a few values are much worse than others.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.
        decisions: two or more paths or short names; the 4 most important ones by default.

    Raises:
        UserError: there is no such reward, metric or decision.
    """
    from plotly.subplots import make_subplots

    found = data.final_values(study, reward)
    if found is None or not len((found := found.measured()).values):
        return layout.empty(layout.NO_REWARD if found is None else layout.NOT_COMPLETED)
    columns = data.decision_columns(study.space, found.trials)
    columns = data.selected(study, columns, decisions, reward, _MOST_DECISIONS)
    if len(columns) < 2:
        return layout.empty('Ranks over pairs need two decisions.')
    size = len(columns) - 1
    drawn = make_subplots(size, size, horizontal_spacing=0.03, vertical_spacing=0.03)
    places = _places(found)
    drawn_rows = layout.thinned(len(places), max(_MOST_POINTS // (size * (size + 1) // 2), 1))
    for row in range(size):
        for column in range(row + 1):
            pair = columns[column], columns[row + 1]
            drawn.add_trace(_points(pair, found, places, drawn_rows), row + 1, column + 1)
            _label(drawn, pair, (row, column), size)
    drawn.update_layout(
        template='plotly_white',
        title=f'Ranks by {layout.text(found.axis.name)}',
        hovermode='closest',
        showlegend=False,
        height=250 + 180 * size,
        coloraxis={
            'colorscale': 'Viridis_r',
            'cmin': 0.0,
            'cmax': 1.0,
            'colorbar': {'title': 'rank', 'tickvals': [0.0, 1.0], 'ticktext': ['best', 'worst']},
        },
    )
    return drawn


def _places(found: Values) -> np.ndarray:
    """The rank of each trial, from 0 for the best to 1; equal values share one: [trials]."""
    scores = -found.axis.sign * found.values
    _, index, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - (counts + 1) / 2
    places: np.ndarray = middles[index] / max(len(scores) - 1, 1)
    return places


def _points(
    pair: tuple[DecisionColumn, DecisionColumn],
    found: Values,
    places: np.ndarray,
    rows: np.ndarray,
) -> Any:
    x, y = (column.values for column in pair)
    there = [index for index in rows if np.isfinite(x[index]) and np.isfinite(y[index])]
    return layout.scatter(
        0,
        x=x[there],
        y=y[there],
        mode='markers',
        marker={'size': 6, 'color': places[there], 'coloraxis': 'coloraxis'},
        customdata=[[found.trials[index].id, found.values[index]] for index in there],
        hovertemplate='trial %{customdata[0]}: %{customdata[1]:.6g}<extra></extra>',
    )


def _label(
    drawn: 'go.Figure',
    pair: tuple[DecisionColumn, DecisionColumn],
    place: tuple[int, int],
    size: int,
) -> None:
    row, column = place
    where = {'row': row + 1, 'col': column + 1}
    x, y = (decision_axis(each.name, each.labels, each.is_log) for each in pair)
    drawn.update_xaxes(_outside(x, row == size - 1), **where)
    drawn.update_yaxes(_outside(y, column == 0), **where)


def _outside(axis: dict[str, Any], is_outside: bool) -> dict[str, Any]:
    """An axis whose title and ticks stand at the edge of the figure only."""
    return axis if is_outside else axis | {'title': '', 'showticklabels': False}
