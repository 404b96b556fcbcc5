"""Figures of the values of one study or several: distribution, and the best so far."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from paxtune.plots import data, layout
from paxtune.plots.data import Values
from paxtune.study.record import Status

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study_view import StudyView


def edf(studies: 'StudyView | Mapping[str, StudyView]', reward: str | None = None) -> 'go.Figure':
    """Draws the empirical distribution: the share of completed trials up to each value.

    Args:
        studies: a study, or several by their names.
        reward: a reward by its label, or a metric; the first reward by default.

    Raises:
        UserError: there is no such reward or metric.
    """
    found = list(_completed(studies, reward))
    if not found:
        return layout.empty(layout.NOT_COMPLETED)
    drawn = layout.figure('Distribution of final values')
    for name, values in found:
        ordered = np.sort(values.values)
        drawn.add_trace(
            layout.scatter(
                len(ordered),
                # Begins at a share of 0.
                x=np.append(ordered[:1], ordered),
                y=np.arange(len(ordered) + 1) / len(ordered),
                mode='lines',
                line={'shape': 'vh'},
                name=name,
                hovertemplate='%{y:.1%} up to %{x:.6g}<extra></extra>',
            )
        )
    drawn.update_xaxes(
        title=layout.axis_title(found[0][1].axis),
        type=layout.scale(np.concatenate([values.values for _, values in found])),
    )
    drawn.update_yaxes(title='share of trials', tickformat='.0%', range=[0, 1.02])
    return drawn


def best_so_far(
    studies: 'StudyView | Mapping[str, StudyView]', reward: str | None = None
) -> 'go.Figure':
    """Draws the best value of completed trials up to each trial, a line for each study.

    Args:
        studies: a study, or several by their names.
        reward: a reward by its label, or a metric; the first reward by default.

    Raises:
        UserError: there is no such reward or metric.
    """
    found = list(_completed(studies, reward))
    if not found:
        return layout.empty(layout.NOT_COMPLETED)
    drawn = layout.figure('Best so far')
    for name, values in found:
        drawn.add_trace(
            layout.scatter(
                len(values.values),
                x=np.arange(1, len(values.values) + 1),
                y=values.best_so_far(),
                mode='lines',
                line={'shape': 'hv'},
                name=name,
                customdata=[trial.id for trial in values.trials],
                hovertemplate='%{y:.6g} after %{x} trials (trial %{customdata})<extra></extra>',
            )
        )
    drawn.update_xaxes(title='completed trials')
    drawn.update_yaxes(
        title=layout.axis_title(found[0][1].axis),
        type=layout.scale(np.concatenate([values.best_so_far() for _, values in found])),
    )
    return drawn


def _completed(
    studies: 'StudyView | Mapping[str, StudyView]', reward: str | None
) -> Iterator[tuple[str, Values]]:
    """Yields the final values of the completed trials of each study that has any, by its name."""
    named = studies if isinstance(studies, Mapping) else {'trials': studies}
    for name, study in named.items():
        found = data.final_values(study, reward)
        if found is None:
            continue
        counts = np.array([each.status is Status.COMPLETED for each in found.trials], bool)
        there = np.flatnonzero(np.isfinite(found.values) & counts)
        if len(there):
            trials = [found.trials[int(index)] for index in there]
            yield layout.text(name), Values(found.axis, trials, found.values[there])
