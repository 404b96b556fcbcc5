"""The Pareto front, and the hypervolume that it dominates."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from paxtune.analysis.hypervolume import hypervolume_history
from paxtune.analysis.trade_off import COST, Axis, Front, Point, front_of
from paxtune.analysis.trial_values import NoValuesError
from paxtune.plots import layout
from paxtune.study.columns import reward_columns
from trainer.command import counted
from trainer.symbolic.errors import shortened

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study_view import StudyView

FRONT, OTHERS = layout.COLORS['completed'], layout.MUTED  # type: ignore[index]

_UNITS = {'_bytes': 'B', '_seconds': 's'}
"""Of metrics, by how their names end."""

_SPAN = 20.0  # A larger ratio of values gets a logarithmic scale.
_MAX_DECISIONS, _LONGEST = 25, 80  # The text under the pointer.
_LONGEST_TITLE = 40  # An upright title must not be longer than its axis.


def pareto_front(study: 'StudyView', x: str | None = None, y: str | None = None) -> 'go.Figure':
    """Draws completed trials by two metrics, and their Pareto front.

    Args:
        study: the study.
        x: a reward by its label, or a metric to minimize; `+METRIC` to maximize it. By default the
            first of several rewards, or the number of parameters.
        y: the same; the second of several rewards by default, or the only one.

    Raises:
        UserError: the name of an axis is ambiguous or unknown.
    """
    if not study.trials:
        return layout.empty(layout.NO_TRIALS)
    rewards = reward_columns(study.rewards)
    if x is None and y is None and len(rewards) != 2:
        metrics = {name for trial in study.trials for name in trial.metrics}
        if len(rewards) < 2 and (not rewards or not any(COST in name for name in metrics)):
            return layout.empty('A front needs two numbers: name metrics as axes.')
        x, y = (rewards[0], rewards[1]) if len(rewards) > 2 else (COST, rewards[0])
    return figure_of(front_of(study, x, y))


def figure_of(front: Front) -> 'go.Figure':
    """Draws a front; under the pointer are the decisions of each trial."""
    if not front.points:
        return layout.empty('No trial was completed yet.')
    drawn = layout.figure(heading(front))
    for name, color, points in groups(front):
        x, y = columns(points)
        drawn.add_trace(
            layout.scatter(
                len(front.points),
                x=x,
                y=y,
                mode='markers',
                marker={'color': color, 'size': 9},
                name=name,
                customdata=[point.trial for point in points],
                hovertext=[_hover(front, point) for point in points],
                hoverinfo='text',
            )
        )
    x, y = columns(front.best)
    drawn.add_trace(
        layout.scatter(
            0,
            x=x,
            y=y,
            mode='lines',
            line={'color': FRONT, 'width': 1.5, 'shape': 'vh' if front.x.is_maximized else 'hv'},
            hoverinfo='skip',
            showlegend=False,
        )
    )
    x, y = columns(front.points)
    for axis, values, update in (
        (front.x, x, drawn.update_xaxes),
        (front.y, y, drawn.update_yaxes),
    ):
        update(
            title=layout.text(title(axis), 200), type='log' if is_log(axis, values) else 'linear'
        )
        if has_prefixes(axis, values):
            update(tickformat='~s', ticksuffix=unit(axis))
    return drawn


def title(axis: Axis) -> str:
    """Returns the label of an axis."""
    good = 'more' if axis.is_maximized else 'less'
    return f'{shortened(axis.name, max_length=_LONGEST_TITLE)} ({good} is better)'


def unit(axis: Axis) -> str:
    """Returns the unit of a metric, by how its name ends; '' for none."""
    return next((unit for end, unit in _UNITS.items() if axis.name.endswith(end)), '')


def heading(front: Front) -> str:
    """Returns the title of the figure."""
    return f'Pareto front: {len(front.best)} of {counted(len(front.points), "trial")}'


def groups(front: Front) -> Iterator[tuple[str, str, list[Point]]]:
    """Yields the groups of points: name, color, trials."""
    if front.others:
        yield 'other trials', OTHERS, front.others
    yield 'front', FRONT, front.best


def columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Returns the columns x and y of points."""
    return [point.x for point in points], [point.y for point in points]


def is_log(axis: Axis, values: Sequence[float]) -> bool:
    """Returns True for the logarithmic scale of a metric."""
    return axis.reward is None and min(values) > 0 and max(values) >= _SPAN * min(values)


def has_prefixes(axis: Axis, values: Sequence[float]) -> bool:
    """Returns True if 1000 is written as 1 k."""
    return bool(unit(axis)) or max(map(abs, values)) >= 1000


def _hover(front: Front, point: Point) -> str:
    few = dict(point.decisions) if len(front.points) <= layout.MAX_HOVERS else {}
    decisions = [
        f'{front.names[path]}: {shortened(str(value), max_length=_LONGEST)}'
        for path, value in few.items()
    ]
    more = len(decisions) - _MAX_DECISIONS
    if more > 0:
        decisions[_MAX_DECISIONS:] = [f'and {more} more']
    lines = [f'{front.x.name}: {point.x:.6g}', f'{front.y.name}: {point.y:.6g}', *decisions]
    escaped = (layout.text(line, 200) for line in lines)
    return '<br>'.join([f'<b>trial {point.trial}</b>', *escaped])


@layout.or_text
def hypervolume(study: 'StudyView', reference: Mapping[str, float] | None = None) -> 'go.Figure':
    """Draws the volume that the Pareto front dominates after each completed trial.

    Args:
        study: a study of two or more rewards.
        reference: the value of each reward, by its label, beyond which a trial counts. By default
            the worst value of a completed trial, and a tenth of the span of all values beyond it.

    Raises:
        UserError: the reference does not name exactly the rewards.
    """
    if len(study.rewards) < 2:
        raise NoValuesError('A hypervolume needs two or more rewards.')
    found = hypervolume_history(study, reference)
    if not len(found.volumes):
        raise NoValuesError('No trial was completed yet.')
    point = ', '.join(
        f'{layout.text(name)} {layout.number(value)}'
        for name, value in zip(found.rewards, found.reference, strict=True)
    )
    drawn = layout.figure(f'Hypervolume beyond {point}')
    ids = [trial.id for trial in found.trials]
    drawn.add_trace(
        layout.scatter(
            len(ids),
            x=ids,
            y=found.volumes,
            mode='lines',
            line={'shape': 'hv', 'color': layout.BEST},
            hovertemplate='trial %{x}: %{y:.6g}<extra></extra>',
        )
    )
    drawn.update_xaxes(title='trial')
    drawn.update_yaxes(title='hypervolume', rangemode='tozero')
    return drawn
