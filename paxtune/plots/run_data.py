"""Columns of how trials ran: attempts, parents, rank correlations. Pure functions of records."""

import bisect
import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from paxtune.analysis.trade_off import Axis, value_at, value_of_trial
from paxtune.plots.data import Curve, learning_curves
from paxtune.schedulers.rung_report import rank_correlation
from paxtune.study.record import Status, TrialRecord

if TYPE_CHECKING:
    from paxtune.study.trial import Trial

_Item = TypeVar('_Item')

_ENDS = {'ended', 'released', 'paused', 'lost', 'failed'}
_MOST_STEPS = 100  # At which correlations are computed.
_MOST_TRIALS = 2000  # From which correlations are computed.


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A worker's time with a trial.

    Attributes:
        trial: its number.
        attempt: the number of the attempt.
        worker: '' if it is not known.
        begin: in UTC.
        end: in UTC; the present for an attempt that goes on.
        outcome: how it ended: a state of the trial, 'released', 'lost', 'failed' or 'running'.
    """

    trial: int
    attempt: int
    worker: str
    begin: datetime.datetime
    end: datetime.datetime
    outcome: str


def attempts(records: Iterable[TrialRecord], now: datetime.datetime) -> list[Attempt]:
    """Lists the attempts of trials, in the order of trials.

    A trial keeps its last 200 events. One that ended without a claim in them has one attempt of its
    run time, or since it was added.
    """
    return [attempt for record in records for attempt in _attempts(record, now)]


def _attempts(record: TrialRecord, now: datetime.datetime) -> Iterator[Attempt]:
    claim = None
    is_known = False
    for event in record.history:
        if event.event == 'claimed':
            if claim is not None:  # A worker that is gone without a word.
                yield _attempt(record, claim.worker, claim.attempt, claim.time, event.time, 'lost')
            claim, is_known = event, True
        elif event.event in _ENDS and claim is not None:
            outcome = str(record.status) if event.event == 'ended' else event.event
            yield _attempt(record, claim.worker, claim.attempt, claim.time, event.time, outcome)
            claim = None
    if claim is not None and not record.status.has_ended:
        yield _attempt(record, claim.worker, claim.attempt, claim.time, now, 'running')
    elif not is_known and record.ended is not None and record.created is not None:
        seconds = datetime.timedelta(seconds=record.seconds)
        begin = record.ended - seconds if record.seconds else record.created
        yield _attempt(record, '', record.attempt, begin, record.ended, str(record.status))


def _attempt(
    record: TrialRecord,
    worker: str,
    attempt: int,
    begin: datetime.datetime,
    end: datetime.datetime,
    outcome: str,
) -> Attempt:
    return Attempt(record.id, attempt, worker, begin, max(begin, end), outcome)


Kind: TypeAlias = Literal['weights', 'decisions', 'replicate', 'retry']
"""The part of a trial that comes from another one."""


@dataclasses.dataclass(frozen=True)
class Relation:
    """A trial that another one comes from.

    Attributes:
        parent: the number of the earlier trial.
        child: the number of the later trial.
        kind: what the child has from the parent.
        step: the step of the weights, where they are known.
    """

    parent: int
    child: int
    kind: Kind
    step: int | None = None


def relations(trials: 'Sequence[Trial]') -> list[Relation]:
    """Lists which trial comes from which: one relation for each trial that comes from another."""
    known = {trial.id for trial in trials}
    found = [relation for trial in trials if (relation := _relation(trial)) is not None]
    return [each for each in found if each.parent in known]


def _relation(trial: 'Trial') -> Relation | None:
    lineage = trial.lineage
    if (weights := lineage.weights_from) is not None:
        return Relation(weights[0], trial.id, 'weights', weights[1])
    if lineage.retry_of is not None:
        return Relation(lineage.retry_of, trial.id, 'retry')
    if lineage.replicate_of_here is not None:
        return Relation(lineage.replicate_of_here, trial.id, 'replicate')
    if lineage.parent is not None:
        return Relation(lineage.parent, trial.id, 'decisions')
    return None


def last_values(axis: Axis, trials: 'Iterable[Trial]') -> Mapping[int, float]:
    """Maps trials to their final values, or to the last ones that they measured."""
    found = {}
    for trial in trials:
        value = value_of_trial(axis, trial)
        if value != value:  # NaN
            measured = [value_at(axis, each) for each in trial.measurements]
            value = next((each for each in reversed(measured) if each == each), value)
        if value == value:
            found[trial.id] = value
    return found


def values_at_pauses(
    axis: Axis, trials: 'Iterable[Trial]'
) -> Mapping[int, list[tuple[int, float]]]:
    """Maps trials to the steps at which they were paused, each with the last value up to there."""
    found = {}
    for curve in learning_curves(axis, trials):
        counts = [
            (step, bisect.bisect_right(curve.steps, step)) for step in curve.trial.record.pauses
        ]
        found[curve.trial.id] = [(step, curve.values[count - 1]) for step, count in counts if count]
    return found


@dataclasses.dataclass(frozen=True)
class StepCorrelation:
    """The rank correlation of values at a step with final ones, over the trials in `pairs`."""

    step: int
    correlation: float
    pairs: int


def step_correlations(axis: Axis, trials: 'Sequence[Trial]') -> list[StepCorrelation]:
    """Computes how the values at each step rank completed trials, compared with the final values.

    A trial counts at a step with its last value up to there, and not at or after its last step. Of
    many steps or trials, 100 steps and 2000 trials are used, evenly spaced.
    """
    completed = [trial for trial in trials if trial.status is Status.COMPLETED]
    curves = learning_curves(axis, _spaced(completed, _MOST_TRIALS))
    pairs = [(curve, value_of_trial(axis, curve.trial)) for curve in curves]
    pairs = [(curve, value) for curve, value in pairs if value == value]
    steps = sorted({step for curve, _ in pairs for step in curve.steps[:-1]})
    found = []
    for step in _spaced(steps, _MOST_STEPS):
        known = [(_value_up_to(curve, step), end) for curve, end in pairs]
        there = [(value, end) for value, end in known if value is not None]
        if (correlation := rank_correlation(there)) is not None:
            found.append(StepCorrelation(step, correlation, len(there)))
    return found


def _value_up_to(curve: Curve, step: int) -> float | None:
    count = bisect.bisect_right(curve.steps, step)
    return curve.values[count - 1] if 0 < count < len(curve.steps) else None


def _spaced(items: Sequence[_Item], most: int) -> Sequence[_Item]:
    stride = -(-len(items) // most) if items else 1
    return items[::stride]
