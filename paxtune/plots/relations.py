"""Figures of workers, and of the relations of trials."""

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paxtune.analysis.attempts import Attempt, Relation, attempts, relations
from paxtune.analysis.trial_values import (
    NoValuesError,
    axis_for,
    last_values,
    thinned,
    values_at_pauses,
)
from paxtune.plots import layout
from paxtune.study.record import Status

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study_view import StudyView
    from paxtune.study.trial import Trial

_MAX_WORKERS = 40
"""Workers that have a tick."""

_OUTCOMES = {str(status): color for status, color in layout.COLORS.items()} | {
    'running': layout.COLORS[Status.ACTIVE],
    'released': '#8c564b',
    'lost': '#e377c2',
    'failed': '#bcbd22',
}
_KINDS = {'weights': '#1f77b4', 'decisions': '#2ca02c', 'replicate': '#9a9a9a', 'retry': '#ff7f0e'}


@layout.or_text
def timeline(study: 'StudyView') -> 'go.Figure':
    """Draws the attempts of trials over time, a row for each worker, by how they ended.

    Attempts of an unknown worker, as of imported trials, share a row.
    """
    found = attempts((trial.record for trial in study.trials), study.store.now())
    if not found:
        raise NoValuesError('No trial has started yet.')
    begins: dict[str, datetime.datetime] = {}
    for each in found:
        begins[each.worker] = min(each.begin, begins.get(each.worker, each.begin))
    rows = {worker: row for row, worker in enumerate(sorted(begins, key=begins.__getitem__))}
    drawn = layout.figure('Workers and attempts')
    for outcome in dict.fromkeys(each.outcome for each in found):
        same = [each for each in found if each.outcome == outcome]
        drawn.add_trace(_bars(outcome, same, rows, len(found)))
    names = [layout.text(worker or 'unknown', 40) for worker in rows]
    ticks = thinned(len(rows), _MAX_WORKERS)
    drawn.update_yaxes(
        tickvals=ticks,
        ticktext=[names[tick] for tick in ticks],
        range=[len(rows) - 0.5, -0.5],
        automargin=True,
    )
    drawn.update_xaxes(title='time (UTC)', type='date')
    drawn.update_layout(height=max(300, min(150 + 25 * len(rows), 1000)))
    return drawn


def _bars(outcome: str, same: Sequence[Attempt], rows: Mapping[str, int], count: int) -> Any:
    """Attempts as thick lines, which stay fast for thousands; a point in the middle for hover."""
    begins = np.array([_utc(each.begin) for each in same])
    ends = np.array([_utc(each.end) for each in same])
    gaps = np.full(len(same), np.datetime64('NaT'), begins.dtype)
    places = np.array([rows[each.worker] for each in same], float)
    texts = [f'trial {each.trial}, attempt {each.attempt}: {each.outcome}' for each in same]
    return layout.scatter(
        4 * count,
        x=np.stack([begins, begins + (ends - begins) / 2, ends, gaps], axis=1).ravel(),
        y=np.repeat(places, 4),
        mode='lines+markers',
        line={'color': _OUTCOMES.get(outcome, layout.MUTED), 'width': 8},
        marker={'size': 8, 'symbol': 'line-ns-open'},
        customdata=np.repeat([each.trial for each in same], 4),
        hovertext=[text for text in texts for _ in range(4)],
        hovertemplate='%{hovertext}<br>%{x}<extra></extra>',
        connectgaps=False,
        name=outcome,
    )


def _utc(time: datetime.datetime) -> np.datetime64:
    return np.datetime64(time.astimezone(datetime.UTC).replace(tzinfo=None), 'us')


@layout.or_text
def lineage(study: 'StudyView', reward: str | None = None) -> 'go.Figure':
    """Draws the relations of trials, with their pauses and promotions.

    Trials stand over their numbers at their last value. Lines join a trial with the source of its
    weights or decisions, or with the trial that it repeats. A line downwards joins the values at
    which a trial was paused. Trials without a value stand at the lower edge. Trials without
    relations and pauses are left out.
    """
    trials = study.trials
    axis = axis_for(study, reward)
    found = relations(trials)
    paused = [trial for trial in trials if trial.record.pauses]
    related = {each.parent for each in found} | {each.child for each in found}
    related |= {trial.id for trial in paused}
    if not related:
        raise NoValuesError('No trial comes from another one.' if trials else layout.NO_TRIALS)
    selected = [trial for trial in trials if trial.id in related]
    values = last_values(axis, selected)
    drawn = layout.figure('Lineage' + f': {len(selected):,} of {len(trials):,} trials')
    lowest = min(values.values(), default=0.0)
    places = {trial.id: values.get(trial.id, lowest) for trial in selected}
    for kind, color in _KINDS.items():
        same = [each for each in found if each.kind == kind]
        if same:
            drawn.add_trace(_edges(kind, same, places, color, len(found)))
    if paused:
        pauses = values_at_pauses(axis, paused)
        drawn.add_trace(_pauses(pauses, places))
    drawn.add_trace(_nodes(selected, places, found))
    drawn.update_xaxes(title='trial')
    drawn.update_yaxes(title=layout.axis_title(axis), type=layout.scale(list(places.values())))
    return drawn


def _edges(
    kind: str, same: Sequence[Relation], places: Mapping[int, float], color: str, count: int
) -> Any:
    nan = float('nan')
    ends = [(each.parent, each.child) for each in same]
    return layout.scatter(
        3 * count,
        x=np.array([x for parent, child in ends for x in (parent, child, nan)]),
        y=np.array([y for pair in ends for y in (places[pair[0]], places[pair[1]], nan)]),
        mode='lines',
        line={'color': color, 'width': 1},
        name=kind,
        hoverinfo='skip',
    )


def _pauses(pauses: Mapping[int, Sequence[tuple[int, float]]], places: Mapping[int, float]) -> Any:
    nan = float('nan')
    paths = {id_: [*(value for _, value in own), places[id_]] for id_, own in pauses.items()}
    steps = {id_: [*(f'paused at {step}' for step, _ in own), ''] for id_, own in pauses.items()}
    count = sum(map(len, paths.values()))
    return layout.scatter(
        2 * count,
        x=np.array([x for id_, own in paths.items() for x in (*[id_] * len(own), nan)]),
        y=np.array([y for own in paths.values() for y in (*own, nan)]),
        mode='lines+markers',
        line={'color': layout.COLORS[Status.PAUSED], 'width': 1, 'dash': 'dot'},
        marker={'size': 4},
        hovertext=[text for own in steps.values() for text in (*own, '')],
        hovertemplate='trial %{x} %{hovertext}<br>%{y}<extra></extra>',
        name='pauses',
    )


def _nodes(
    selected: 'Sequence[Trial]', places: Mapping[int, float], found: Sequence[Relation]
) -> Any:
    origins = {each.child: each for each in found}
    return layout.scatter(
        len(selected),
        x=[trial.id for trial in selected],
        y=[places[trial.id] for trial in selected],
        mode='markers',
        marker={'size': 8, 'color': [layout.COLORS[trial.status] for trial in selected]},
        customdata=[trial.id for trial in selected],
        hovertext=[_about(trial, origins.get(trial.id)) for trial in selected],
        hovertemplate='%{hovertext}<br>%{y}<extra></extra>',
        name='trials',
    )


def _about(trial: 'Trial', origin: Relation | None) -> str:
    about = f'trial {trial.id}, {trial.status}'
    if origin is not None:
        step = '' if origin.step is None else f', step {origin.step}'
        about += f'<br>{origin.kind} from trial {origin.parent}{step}'
    if trial.lineage.replaces is not None:
        about += f'<br>replaces trial {trial.lineage.replaces}'
    return about
