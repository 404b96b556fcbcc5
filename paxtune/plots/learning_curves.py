"""Learning curves, and how early values rank trials."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paxtune.analysis.attempts import related_to
from paxtune.analysis.trade_off import Axis
from paxtune.analysis.trial_values import (
    SECONDS,
    STEP,
    Curve,
    NoValuesError,
    axis_for,
    best_of,
    learning_curves,
    step_correlations,
    thinned,
)
from paxtune.plots import layout
from paxtune.plots.restyle import HIGHLIGHTS
from paxtune.schedulers.rung_report import Rung, rung_report
from paxtune.study.record import Status

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study import Study

_MAX_POINTS = 60_000
_MAX_STEPS_PER_CURVE = 200
_CLEAR = 40  # Curves of one color that are no solid band.
_GAP = float('nan')
_ENDS = {Status.STOPPED: 'x', Status.PAUSED: 'square', Status.ACTIVE: 'circle'}
"""The marks at the ends of curves that were not completed."""
_NEIGHBOURS = (layout.BEST, '#9467bd', '#8c564b', '#e377c2', '#7f7f7f', '#17becf')
"""The colors of curves beside the curve of a trial."""


@layout.or_text
def curves(study: 'Study', reward: str | None = None, over: str = STEP) -> 'go.Figure':
    """Draws the learning curves of trials, with rungs and the ends of unfinished ones.

    A cross ends the curve of a trial that was stopped early, or is infeasible; a square is for a
    paused one, a circle for a running one. The best trial stands out. Rungs are drawn where
    the scheduler counts steps. Of many curves, running ones, the best ones and evenly spaced others
    are drawn, and of long ones 200 evenly spaced steps. Many curves are pale.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.
        over: the horizontal axis: `step`, `seconds` of the trial, or a metric, such as
            `spent_flops`. Rungs are drawn over steps.
    """
    axis, trials = axis_for(study, reward), study.trials
    found = learning_curves(axis, trials, over)
    if not found:
        raise NoValuesError(_missing('No trial', 'has', over) if trials else layout.NO_TRIALS)
    found.sort(key=lambda curve: _rank(curve, axis.is_maximized))
    selected = _selected(found)
    count = sum(min(len(curve.steps), _MAX_STEPS_PER_CURVE) for curve in selected)
    few = '' if len(selected) == len(found) else f': {len(selected):,} of {len(found):,} trials'
    drawn = layout.figure('Learning curves' + few)
    for status in Status:
        same = [curve for curve in selected if curve.trial.status is status]
        if same:
            drawn.add_trace(_lines(status, same, count))
    for status in (*_ENDS, Status.INFEASIBLE):
        same = [curve for curve in selected if curve.trial.status is status]
        if same:
            drawn.add_trace(_ends(status, same, count))
    best = next((curve for curve in selected if curve.trial.status is Status.COMPLETED), None)
    if best is not None:
        line = {'color': layout.BEST, 'width': 3}
        name = f'best: trial {best.trial.id}'
        drawn.add_trace(layout.scatter(0, **_points([best]), mode='lines', line=line, name=name))
    return _with_axes(drawn, study, axis, over, selected)


@layout.or_text
def trial_curve(
    study: 'Study', number: int, reward: str | None = None, over: str = STEP
) -> 'go.Figure':
    """Draws the learning curve of a trial, beside the best and related trials."""
    axis, trial = axis_for(study, reward), study.trial(number)
    own = learning_curves(axis, [trial], over)
    if not own:
        raise NoValuesError(_missing(f'Trial {number}', 'has not', over))
    drawn = layout.figure(f'Learning curve of trial {number}')
    best = best_of(axis, study.trials)
    known = dict.fromkeys([best, *related_to(number, study.trials)])
    numbers = [each for each in known if each is not None and each != number]
    neighbours = [study.trial(each) for each in numbers[: len(_NEIGHBOURS)]]
    others = learning_curves(axis, neighbours, over)
    for color, curve in zip(_NEIGHBOURS, others, strict=False):
        line = {'color': color, 'width': 1.5, 'dash': 'dot'}
        name = f'{"best: " if curve.trial.id == best else ""}trial {curve.trial.id}'
        drawn.add_trace(layout.scatter(0, **_points([curve]), mode='lines', line=line, name=name))
    style = {'color': layout.COLORS[trial.status], 'width': 3}
    name = f'trial {number}, {trial.status}'
    points = _points(own)
    drawn.add_trace(layout.scatter(0, **points, mode='lines+markers', line=style, name=name))
    return _with_axes(drawn, study, axis, over, [*own, *others])


@layout.or_text
def compared_curves(
    study: 'Study', numbers: Sequence[int], reward: str | None = None, over: str = STEP
) -> 'go.Figure':
    """Draws the learning curves of some trials, each in a color of its own."""
    axis = axis_for(study, reward)
    found = learning_curves(axis, [study.trial(number) for number in numbers], over)
    if not found:
        raise NoValuesError(_missing('None of these trials', 'has', over))
    drawn = layout.figure('Learning curves')
    for color, curve in zip(itertools.cycle(HIGHLIGHTS), found, strict=False):
        style = {'name': f'trial {curve.trial.id}', 'line': {'color': color, 'width': 2}}
        points = _points([curve])
        drawn.add_trace(layout.scatter(0, **points, mode='lines+markers', **style))
    return _with_axes(drawn, study, axis, over, found)


def _missing(trials: str, has: str, over: str) -> str:
    measured = 'been measured' if over in (STEP, SECONDS) else f'measured {over}'
    return f'{trials} {has} {measured} yet.'


def _with_axes(
    drawn: 'go.Figure', study: 'Study', axis: Axis, over: str, found: Sequence[Curve]
) -> 'go.Figure':
    """Adds titles, scales, and the rungs of a scheduler that counts steps."""
    if over == STEP and study.scheduler is not None and study.scheduler.unit == 'steps':
        for rung in _rungs(study):
            drawn.add_vline(rung.resource, line={'dash': 'dot', 'width': 1, 'color': layout.MUTED})
    drawn.update_xaxes(title=layout.text(over))
    values = np.concatenate([curve.values for curve in found])
    drawn.update_yaxes(title=layout.axis_title(axis), type=layout.scale(values))
    return drawn


@layout.or_text
def rank_correlations(study: 'Study', reward: str | None = None) -> 'go.Figure':
    """Draws how well early values rank trials: Spearman's correlation with the final values.

    There is a line over the steps of completed trials. Where the scheduler has rungs and the study
    one reward, there is a mark for each rung: correlations with rewards at the end and at the next
    rung. Where the scheduler does not count steps, only rungs are drawn, in its unit.
    """
    axis, scheduler = axis_for(study, reward), study.scheduler
    rungs = _rungs(study) if axis.reward is not None else []
    unit = scheduler.unit if scheduler is not None and rungs else 'steps'
    drawn = layout.figure(f'Rank correlation with the final {layout.text(axis.name)}')
    if unit == 'steps':
        steps = step_correlations(axis, study.trials)
        if steps:
            drawn.add_trace(
                layout.scatter(
                    0,
                    x=[each.step for each in steps],
                    y=[each.correlation for each in steps],
                    customdata=[each.pairs for each in steps],
                    mode='lines+markers',
                    name='steps of completed trials',
                    hovertemplate='step %{x}: %{y:.3f}<br>%{customdata} trials<extra></extra>',
                )
            )
    for name, symbol in (('end', 'diamond'), ('next', 'triangle-right')):
        drawn.add_traces(_rung_points(rungs, name, symbol, unit))
    if not drawn.data:
        raise NoValuesError('Two completed trials must have measured twice.')
    drawn.update_xaxes(title=unit)
    drawn.update_yaxes(title="Spearman's rank correlation", range=[-1.05, 1.05])
    return drawn


def _rung_points(rungs: Sequence[Rung], name: str, symbol: str, unit: str) -> list[Any]:
    known = [rung for rung in rungs if getattr(rung, name) is not None]
    if not known:
        return []
    texts = [
        f'rung of {rung.resource:.6g} {unit}: {rung.trials} trials, {rung.stopped} stopped, '
        f'{rung.paused} paused; {getattr(rung, name + "_pairs")} pairs'
        for rung in known
    ]
    trace = layout.scatter(
        0,
        x=[rung.resource for rung in known],
        y=[getattr(rung, name) for rung in known],
        mode='markers',
        marker={'symbol': symbol, 'size': 12},
        name={'end': 'rungs, with the end', 'next': 'rungs, with the next rung'}[name],
        hovertext=texts,
        hovertemplate='%{hovertext}<br>%{y:.3f}<extra></extra>',
    )
    return [trace]


def _rungs(study: 'Study') -> list[Rung]:
    if study.scheduler is None or len(study.rewards) != 1:
        return []
    return rung_report(study.curves(), study.scheduler)


def _rank(curve: Curve, is_maximized: bool) -> tuple[bool, bool, float]:
    status = curve.trial.status
    sign = -1.0 if is_maximized else 1.0
    return not status.is_open, status is not Status.COMPLETED, sign * curve.values[-1]


def _selected(ranked: Sequence[Curve]) -> list[Curve]:
    """Selects as many curves as fit: half of them the first ones, the others evenly spaced."""
    lengths = [min(len(curve.steps), _MAX_STEPS_PER_CURVE) + 1 for curve in ranked]
    if sum(lengths) <= _MAX_POINTS:
        return list(ranked)
    most = _MAX_POINTS * len(ranked) // sum(lengths)
    first, others = ranked[: most // 2], ranked[most // 2 :]
    return [*first, *(others[index] for index in thinned(len(others), most - len(first)))]


def _points(selected: Sequence[Curve]) -> dict[str, Any]:
    """Columns of several curves, with a gap after each."""
    x: list[float] = []
    y: list[float] = []
    ids: list[int] = []
    for curve in selected:
        places, values = curve.places, curve.values
        if len(places) > _MAX_STEPS_PER_CURVE:
            kept = thinned(len(places), _MAX_STEPS_PER_CURVE)
            places, values = [places[each] for each in kept], [values[each] for each in kept]
        x += [*places, _GAP]
        y += [*values, _GAP]
        ids += [curve.trial.id] * (len(places) + 1)
    return {
        'x': np.array(x),
        'y': np.array(y),
        'customdata': np.array(ids),
        'hovertemplate': 'trial %{customdata}, at %{x}<br>%{y}<extra></extra>',
    }


def _lines(status: Status, same: Sequence[Curve], count: int) -> Any:
    return layout.scatter(
        count,
        **_points(same),
        mode='lines+markers' if count <= 1000 else 'lines',
        marker={'size': 3},
        line={'color': layout.COLORS[status], 'width': 1},
        # Hundreds of curves would be a solid band.
        opacity=max(0.12, 0.7 * min(1.0, _CLEAR / len(same)) ** 0.5),
        name=str(status),
    )


def _ends(status: Status, same: Sequence[Curve], count: int) -> Any:
    texts = [
        f'trial {curve.trial.id}, {status}: {layout.text(curve.trial.reason or "", 100)}'
        for curve in same
    ]
    return layout.scatter(
        count,
        x=[curve.places[-1] for curve in same],
        y=[curve.values[-1] for curve in same],
        mode='markers',
        marker={'symbol': _ENDS.get(status, 'x'), 'size': 8, 'color': layout.COLORS[status]},
        customdata=[curve.trial.id for curve in same],
        hovertext=texts,
        hovertemplate='%{hovertext}<extra></extra>',
        showlegend=False,
    )
