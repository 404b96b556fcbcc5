"""The optimization history."""

from typing import TYPE_CHECKING, Any

import numpy as np

from paxtune.plots import data, layout
from paxtune.study.record import Status

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study_view import StudyView


def history(study: 'StudyView', reward: str | None = None) -> 'go.Figure':
    """Draws the final value of every trial, and the best one so far.

    The best so far is that of completed trials. Infeasible trials have a mark at the lower edge.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.

    Raises:
        UserError: there is no such reward or metric.
    """
    found = data.final_values(study, reward)
    if found is None or not found.trials:
        return layout.empty(layout.NO_REWARD if found is None else layout.NO_TRIALS)
    is_few = len(found.trials) <= data.MOST_HOVERS
    columns = data.decision_columns(study.space, found.trials) if is_few else []
    texts = data.hovers(found.trials, columns)
    ids = np.array([trial.id for trial in found.trials])
    statuses = np.array([trial.status for trial in found.trials])
    drawn = layout.figure('Optimization history')
    for status in (Status.COMPLETED, Status.STOPPED):
        there = np.flatnonzero((statuses == status) & np.isfinite(found.values))
        if len(there):
            drawn.add_trace(_points(status, ids, found.values[there], there, texts, len(ids)))
    best = found.best_so_far()
    if np.isfinite(best).any():
        changes = np.flatnonzero(np.isfinite(best) & (np.diff(best, prepend=np.nan) != 0))
        ends = np.append(changes, len(best) - 1)
        drawn.add_trace(
            layout.scatter(
                0,
                x=ids[ends],
                y=best[ends],
                mode='lines',
                line={'shape': 'hv', 'color': layout.BEST},
                name='best so far',
            )
        )
    there = np.flatnonzero(statuses == Status.INFEASIBLE)
    if len(there):
        edge = np.full(len(there), 0.01)
        trace = _points(Status.INFEASIBLE, ids, edge, there, texts, len(ids))
        drawn.add_trace(trace.update(yaxis='y2', marker_symbol='x-thin-open'))
        drawn.update_layout(yaxis2={'overlaying': 'y', 'range': [0, 1], 'visible': False})
    drawn.update_xaxes(title='trial')
    drawn.update_yaxes(title=layout.axis_title(found.axis), selector=0)
    drawn.update_layout(yaxis_type=layout.scale(found.values))
    return drawn


def _points(
    status: Status, ids: np.ndarray, y: np.ndarray, there: np.ndarray, texts: list[str], count: int
) -> Any:
    return layout.scatter(
        count,
        x=ids[there],
        y=y,
        mode='markers',
        marker={'color': layout.COLORS[status]},
        name=str(status),
        customdata=ids[there],
        hovertext=[texts[index] for index in there],
        hovertemplate='%{hovertext}<br>%{y}<extra></extra>',
    )
