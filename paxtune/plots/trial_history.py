"""The optimization history of a study, and the best so far of several."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from paxtune.analysis.decision_columns import decision_columns
from paxtune.analysis.trial_values import SECONDS, NoValuesError, Values, final_values
from paxtune.plots import layout
from paxtune.study.record import Status

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study_view import StudyView


TRIAL, TIME = 'trial', 'time'


@layout.or_text
def history(study: 'StudyView', reward: str | None = None, over: str = TRIAL) -> 'go.Figure':
    """Draws the final value of every trial, and the best one so far.

    The best so far counts completed trials only. Infeasible trials have a mark at the lower edge.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.
        over: the horizontal axis: `trial`, the `time` of the end, or a sum over the trials that
            had ended: `seconds`, or a metric.
    """
    found = final_values(study, reward)
    if not found.trials:
        raise NoValuesError(layout.NO_TRIALS)
    found, places = _placed(found, over)
    is_few = len(found.trials) <= layout.MAX_HOVERS
    columns = decision_columns(study.space, found.trials) if is_few else []
    texts = layout.hovers(found.trials, columns)
    ids = np.array([trial.id for trial in found.trials])
    statuses = np.array([trial.status for trial in found.trials])
    drawn = layout.figure('Optimization history')
    for status in (Status.COMPLETED, Status.STOPPED):
        there = np.flatnonzero((statuses == status) & np.isfinite(found.values))
        if len(there):
            drawn.add_trace(_points(status, ids, places, found.values[there], there, texts))
    best = found.best_so_far()
    if np.isfinite(best).any():
        changes = np.flatnonzero(np.isfinite(best) & (np.diff(best, prepend=np.nan) != 0))
        ends = np.append(changes, len(best) - 1)
        drawn.add_trace(
            layout.scatter(
                0,
                x=places[ends],
                y=best[ends],
                mode='lines',
                line={'shape': 'hv', 'color': layout.BEST},
                name='best so far',
            )
        )
    there = np.flatnonzero(statuses == Status.INFEASIBLE)
    if len(there):
        edge = np.full(len(there), 0.01)
        trace = _points(Status.INFEASIBLE, ids, places, edge, there, texts)
        drawn.add_trace(trace.update(yaxis='y2', marker_symbol='x-thin-open'))
        drawn.update_layout(yaxis2={'overlaying': 'y', 'range': [0, 1], 'visible': False})
    titles = {TRIAL: TRIAL, TIME: 'time (UTC)', SECONDS: 'seconds of all trials'}
    drawn.update_xaxes(title=titles.get(over, f'{layout.text(over)} of all trials'))
    drawn.update_yaxes(title=layout.axis_title(found.axis), selector=0)
    drawn.update_layout(yaxis_type=layout.scale(found.values))
    return drawn


def _placed(found: Values, over: str) -> tuple[Values, np.ndarray]:
    """Returns trials in order of an axis, and the place of each."""
    if over == TRIAL:
        return found, np.array([trial.id for trial in found.trials])
    times = [trial.completed for trial in found.trials]
    ends = sorted((time, row) for row, time in enumerate(times) if time is not None)
    if not ends:
        raise NoValuesError('No trial has ended yet.')
    found = found.of(np.array([row for _, row in ends]))
    if over == TIME:
        return found, np.array([time.replace(tzinfo=None) for time, _ in ends], 'M8[ms]')
    spent = [
        trial.seconds if over == SECONDS else trial.metrics.get(over, 0.0) for trial in found.trials
    ]
    if not any(spent):
        raise NoValuesError(f'No trial has measured {over}.')
    return found, np.cumsum(spent)


def _points(
    status: Status,
    ids: np.ndarray,
    places: np.ndarray,
    y: np.ndarray,
    there: np.ndarray,
    texts: list[str],
) -> Any:
    return layout.scatter(
        len(ids),
        x=places[there],
        y=y,
        mode='markers',
        marker={'color': layout.COLORS[status]},
        name=str(status),
        customdata=ids[there],
        hovertext=[texts[index] for index in there],
        hovertemplate='%{hovertext}<br>%{y}<extra></extra>',
    )


@layout.or_text
def best_so_far(
    studies: 'StudyView | Mapping[str, StudyView]',
    reward: str | None = None,
    x: Literal['trials', 'hours'] = 'trials',
) -> 'go.Figure':
    """Draws the best value of completed trials up to each trial, a line for each study.

    Args:
        studies: one, or several by name.
        reward: a reward by its label, or a metric; the first reward by default.
        x: the number of completed trials, or the hours since the first trial began.
    """
    found = list(_completed(studies, reward))
    if x == 'hours':
        found = [(name, values.in_order_of_time()) for name, values in found]
    if not found:
        raise NoValuesError('No trial was completed yet.')
    drawn = layout.figure('Best so far' if x == 'trials' else 'Best so far over time')
    for name, values in found:
        drawn.add_trace(
            layout.scatter(
                len(values.values),
                x=np.arange(1, len(values.values) + 1) if x == 'trials' else values.hours(),
                y=values.best_so_far(),
                mode='lines',
                line={'shape': 'hv'},
                name=name,
                customdata=[trial.id for trial in values.trials],
                hovertemplate=f'%{{y:.6g}} after %{{x:.6g}} {x} (trial %{{customdata}})'
                '<extra></extra>',
            )
        )
    drawn.update_xaxes(title='completed trials' if x == 'trials' else 'hours')
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
        if reward is None and not study.rewards:
            continue
        found = final_values(study, reward).completed()
        if found.trials:
            yield layout.text(name), found
