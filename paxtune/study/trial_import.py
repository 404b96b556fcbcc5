"""Trials of other studies, added to a study as they ended."""

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paxtune.objectives.limits import violation
from paxtune.objectives.measurement import Measurement, with_carried
from paxtune.search_space.parameters import to_parameters
from paxtune.study.attributes import MAX_ATTRIBUTES, Value, validated
from paxtune.study.record import Lineage, RunTime, Status, TrialRecord
from paxtune.study.study import Study
from paxtune.study.study_view import StudyView
from paxtune.study.transfer import adopted, carried, rewards_of
from paxtune.study.transitions import TurnLostError
from trainer.symbolic.errors import UserError

_AT_ONCE = 500  # Trials in one message to a service, whose size is limited.


def fork(source: StudyView, study: Study) -> int:
    """Adds the ended trials of another study to a study of a changed experiment.

    Decisions are carried over by path. One that the source did not make is read from the trial's
    concrete experiment, where the new space has it among its candidates. A study that has trials
    gets none. Returns the number of added trials.
    """
    directory = source.directory
    if isinstance(directory, Path):
        directory = directory.resolve()
    trials = list(carried(source, study.space))
    ended = _ended_trials(study, trials, str(directory or 'memory'))
    with contextlib.suppress(TurnLostError):
        return len(study.store.add_trials(list(ended.values()), after=0))
    return 0


def import_trials(study: Study, trials: Sequence[Mapping[str, Any]], source: str) -> int:
    """Adds trials that have ended to a study, where they fit into its space.

    The rewards of the study are computed from their metrics. A trial that was imported from the
    same source before is not imported again.

    Args:
        trials: as `content` makes them.

    Returns:
        The number of added trials. Others had not ended, do not fit, or lack a metric.

    Raises:
        UserError: an item is not a trial.
    """
    ended = _ended_trials(study, trials, source)
    count = 0
    while True:
        newest = study.store.max_id()
        known = {trial.lineage.origin for trial in study.trials}
        new = [ended[origin] for origin in ended if origin not in known]
        if not new:
            return count
        # Others may add the same trials now. Then those that they have left out are next.
        with contextlib.suppress(TurnLostError):
            count += len(study.store.add_trials(new[:_AT_ONCE], after=newest))


def _ended_trials(
    study: Study, trials: Sequence[Mapping[str, Any]], source: str
) -> dict[str, TrialRecord]:
    """Reads those of some trials that have ended and fit into a study, by their origin."""
    # A path may hold bytes that are no text to a study.
    source = source.encode(errors='backslashreplace').decode()
    ended: dict[str, TrialRecord] = {}
    for each in trials:
        try:
            origin = f'{source}#{_whole(each["trial"])}'
            fitting = _ended(study, each, origin)
        except (
            ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError
        ) as error:  # fmt: skip
            raise UserError(
                f'{source}: not a trial as `studies export` writes it: {error}'
            ) from error
        if fitting is not None:
            ended.setdefault(origin, fitting)
    return ended


def _ended(study: Study, each: Mapping[str, Any], origin: str) -> TrialRecord | None:
    """Reads one trial; None where it has not ended or does not fit into the study."""
    decisions = adopted(study.space, each['decisions'])
    status = Status(each['state'].lower())
    if status is Status.COMPLETED and each['stopped']:
        status = Status.STOPPED
    if decisions is None or not status.has_ended:
        return None
    measurements = _measurements(study, each)
    is_stopped = status is Status.STOPPED
    now = study.store.now()
    record = TrialRecord(
        to_parameters(study.space.spec, decisions),
        status=status,
        ended=now,
        measurements=tuple(measurements),
        reason=_text(each['reason'] or '') if is_stopped else None,
        lineage=_lineage(each, origin),
        run_time=RunTime(_duration(each['seconds']), _whole(each['devices'])),
        attributes=_attributes(each.get('attributes', {})),
    )
    if status is Status.INFEASIBLE:
        return dataclasses.replace(record, reason=_text(each['reason'] or ''))
    metrics = _metrics(each)
    made = rewards_of(study.rewards, metrics, study.space)
    if len(made) < len(study.rewards) or violation(study.search.limits, metrics):
        return None
    if study.suggester.feasibility.why_infeasible(decisions):
        return None
    step = max((m.step for m in measurements), default=0)
    return dataclasses.replace(record, final=Measurement(step, metrics, made))


def _measurements(study: Study, each: Mapping[str, Any]) -> list[Measurement]:
    measurements: list[Measurement] = []
    for measured in each['measurements']:
        metrics, step = _metrics(measured), _whole(measured['step'])
        made = rewards_of(study.rewards, with_carried(measurements, metrics), study.space)
        measurements.append(Measurement(step, metrics, made))
    return measurements


def _lineage(each: Mapping[str, Any], origin: str) -> Lineage:
    """Describes an imported trial; its replicate numbers are those of its own study."""
    replicate, first = each.get('replicate') or 1, each.get('replicate_of')
    if replicate == 1 or first is None:
        return Lineage(origin=origin)
    return Lineage(origin=origin, replicate=_whole(replicate), replicate_of=_whole(first))


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f'expected a whole number: {value!r}')
    return value


def _text(value: Any) -> str:
    """Returns a text that a study can hold: JSON knows halves of characters, a study does not."""
    if not isinstance(value, str):
        raise ValueError(f'expected a text: {value!r}')
    value.encode()
    return value


def _duration(value: Any) -> float:
    seconds = float(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f'expected seconds: {value!r}')
    return seconds


def _attributes(found: Mapping[str, Any]) -> dict[str, Value]:
    if len(found) > MAX_ATTRIBUTES:
        raise ValueError(f'expected at most {MAX_ATTRIBUTES} attributes, not {len(found)}')
    return {name: validated(name, value) for name, value in found.items()}


def _metrics(measured: Mapping[str, Any]) -> dict[str, float]:
    """Validates metrics of a file, which any program may have written."""
    metrics = {_text(name): float(value) for name, value in measured['metrics'].items()}
    for name, value in metrics.items():
        if name.startswith('$') or not math.isfinite(value):
            raise ValueError(f'no metric: {name}={value}')
    return metrics
