"""Trials of other studies, added to a study as they ended."""

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from paxtune.objectives.limits import violation
from paxtune.objectives.measurement import Measurement, with_carried
from paxtune.search_space.parameters import to_parameters
from paxtune.study.attributes import MAX_ATTRIBUTES, validated
from paxtune.study.record import Lineage, RunTime, Status, TrialRecord
from paxtune.study.record_checks import DamagedRecordError, Rules, check_trial
from paxtune.study.study import Study
from paxtune.study.study_view import StudyView
from paxtune.study.transfer import adopted, carried, rewards_of
from paxtune.study.transitions import TurnLostError
from trainer.symbolic.errors import UserError

_MAX = sys.float_info.max

_Whole: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Metrics: TypeAlias = dict[
    Annotated[str, Meta(pattern=r'\A(?!\$)')], Annotated[float, Meta(ge=-_MAX, le=_MAX)]
]


class _Measured(msgspec.Struct):
    step: _Whole
    metrics: _Metrics


class _Exported(msgspec.Struct):
    """Fields of a trial that `content` made, of which any program may have written others."""

    trial: _Whole
    state: Status
    decisions: dict[str, Any]
    metrics: _Metrics
    measurements: list[_Measured]
    seconds: Annotated[float, Meta(ge=0.0, le=_MAX)]
    devices: _Whole
    reason: str | None
    attributes: Annotated[dict[str, Any], Meta(max_length=MAX_ATTRIBUTES)] = {}
    replicate: _Whole | None = None
    replicate_of: _Whole | None = None


def fork(source: StudyView, study: Study) -> int:
    """Adds the ended trials of another study to a study of a changed experiment.

    Decisions are matched by path. A decision that the source lacks is read from the trial's
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


def import_trials(
    study: Study, trials: Sequence[Mapping[str, Any]], source: str, at_once: int = 500
) -> int:
    """Adds trials that have ended to a study, where they fit into its space.

    The rewards of the study are computed from their metrics. A trial that was imported from the
    same source before is not imported again.

    Args:
        trials: as `content` makes them.
        at_once: trials in one message to a service, whose size is limited.

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
        # Another process may add the same trials now; the next try adds the rest.
        with contextlib.suppress(TurnLostError):
            count += len(study.store.add_trials(new[:at_once], after=newest))


def _ended_trials(
    study: Study, trials: Sequence[Mapping[str, Any]], source: str
) -> dict[str, TrialRecord]:
    """Reads the ended trials that fit into a study, by their origin."""
    # A path may hold bytes that are no text to a study.
    source = source.encode(errors='backslashreplace').decode()
    ended: dict[str, TrialRecord] = {}
    assert study.context.read_parameters is not None
    rules = Rules(len(study.rewards), study.context.read_parameters)
    for each in trials:
        try:
            read = msgspec.convert(each, _Exported)
            # JSON knows halves of characters, a study does not.
            names = (name for measured in read.measurements for name in measured.metrics)
            ''.join([read.reason or '', *read.metrics, *names]).encode()
            origin = f'{source}#{read.trial}'
            fitting = _ended(study, read, origin)
            if fitting is not None:
                check_trial(fitting, rules)
        except (
            DamagedRecordError, msgspec.MsgspecError, AttributeError, RecursionError, TypeError,
            ValueError,
        ) as error:  # fmt: skip
            raise UserError(
                f'{source}: not a trial as `studies export` writes it: {error}'
            ) from error
        if fitting is not None:
            ended.setdefault(origin, fitting)
    return ended


def _ended(study: Study, each: _Exported, origin: str) -> TrialRecord | None:
    """Makes the record of a trial; None where it has not ended or does not fit into the study."""
    decisions = adopted(study.space, each.decisions)
    if decisions is None or not each.state.has_ended:
        return None
    measurements = _measurements(study, each)
    record = TrialRecord(
        to_parameters(study.space.spec, decisions),
        status=each.state,
        ended=study.store.now(),
        measurements=tuple(measurements),
        reason=None if each.state is Status.COMPLETED else each.reason or '',
        lineage=_lineage(each, origin),
        run_time=RunTime(each.seconds, each.devices),
        attributes={name: validated(name, value) for name, value in each.attributes.items()},
    )
    if each.state is Status.INFEASIBLE:
        return record
    made = rewards_of(study.rewards, each.metrics, study.space)
    if len(made) < len(study.rewards) or violation(study.search.limits, each.metrics):
        return None
    if study.suggester.feasibility.why_infeasible(decisions):
        return None
    step = max((m.step for m in measurements), default=0)
    return dataclasses.replace(record, final=Measurement(step, each.metrics, made))


def _measurements(study: Study, each: _Exported) -> list[Measurement]:
    measurements: list[Measurement] = []
    # Loops of pg.sample may measure a step again: the last measurement of it counts.
    by_step = {measured.step: measured for measured in each.measurements}
    for _, measured in sorted(by_step.items()):
        carried_on = with_carried(measurements, measured.metrics)
        made = rewards_of(study.rewards, carried_on, study.space)
        measurements.append(Measurement(measured.step, measured.metrics, made))
    return measurements


def _lineage(each: _Exported, origin: str) -> Lineage:
    """Describes an imported trial; its replicate numbers are those of its own study."""
    if (each.replicate or 1) == 1 or each.replicate_of is None:
        return Lineage(origin=origin)
    return Lineage(origin=origin, replicate=each.replicate or 1, replicate_of=each.replicate_of)
