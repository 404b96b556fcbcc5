"""Trials as plain data: written to files, and read into a study from there."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyglove as pg

from paxtune.objectives.limits import violation
from paxtune.objectives.measurement import Measurement, with_carried
from paxtune.objectives.rewards import NonFiniteRewardError, Reward, measured_rewards
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.labels import label, match
from paxtune.search_space.space import Space
from paxtune.storage.study_metadata import FORMAT
from trainer.runtime.directory import read_json
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import to_json_text

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial


@dataclasses.dataclass(frozen=True)
class EndedTrial:
    """A trial that ran elsewhere.

    Attributes:
        decisions: by the id of their decision point.
        measurements: by step.
        final: what it came to; None where it is infeasible.
        infeasible: why it is.
        notes: what else there is to know.
    """

    decisions: Decisions
    measurements: Sequence[Measurement]
    final: Measurement | None
    infeasible: str = ''
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)


def content(trial: 'Trial') -> dict[str, Any]:
    """All that the study knows of a trial, as JSON data."""
    return {
        'trial': trial.id,
        'state': trial.state,
        'reason': trial.reason,
        'stopped': trial.stop_reason is not None,
        'decisions': trial.decisions,
        'rewards': list(trial.rewards),
        'metrics': dict(trial.metrics),
        'origin': trial.origin,
        'parent': trial.parent,
        'retry_of': trial.retry_of,
        'repeat': trial.repeat,
        'repeat_of': trial.repeat_of,
        'warm_start': trial.warm_start,
        'weights_from': trial.weights_from,
        'replaces': trial.replaces,
        'pauses': trial.pauses,
        'created': trial.created.isoformat(),
        'ended': trial.completed.isoformat() if trial.completed else None,
        'seconds': trial.seconds,
        'devices': trial.devices,
        'attempt': trial.attempt,
        'history': trial.history,
        'measurements': [
            {
                'step': each.step,
                'rewards': list(each.rewards),
                'metrics': dict(each.metrics),
                'checkpoint': each.checkpoint,
            }
            for each in trial.measurements
        ],
    }


def export(study: 'Study') -> dict[str, Any]:
    """A whole study, as JSON data."""
    return {
        'format': FORMAT,
        'experiment': json.loads(to_json_text(study.value)),
        'search': json.loads(to_json_text(study.search)),
        'data': dict(study.data),
        'trials': [content(trial) for trial in study.trials],
    }


def read(path: str) -> dict[str, Any]:
    """What `export` made, from a file.

    Raises:
        UserError: it cannot be read, or is something else.
    """
    found = read_json(path, path)
    is_export = isinstance(found, dict) and isinstance(found.get('trials'), list)
    if not is_export or not isinstance(found.get('data', {}), dict):
        raise UserError(f'{path}: this is nothing that `studies export` writes')
    return dict(found)


def differences_of_data(study: 'Study', exported: Mapping[str, Any]) -> list[str]:
    """How the data differ that the trials of an exported study saw, for people."""
    there = exported.get('data', {})
    return [
        f'the fingerprint of {name} is {there[name]} there, and {now} in the study: the rewards '
        'may not be comparable'
        for name, now in study.data.items()
        if name in there and there[name] != now
    ]


def import_trials(study: 'Study', trials: Sequence[Mapping[str, Any]], source: str) -> int:
    """Adds trials that have ended to a study, where they fit into its space.

    Their rewards are made anew, of their metrics, by the rewards of this study. A trial that was
    imported from the same source before is not imported again.

    Args:
        study: where they are added.
        trials: as `content` makes them.
        source: the study, or the file, that they are from.

    Returns:
        How many were added. Others had not ended, do not fit, or lack a metric.

    Raises:
        UserError: something there is no trial.
    """
    known = {trial.origin for trial in study.trials}
    # A path may hold bytes that are no text to a study.
    source = source.encode(errors='backslashreplace').decode()
    ended = []
    for each in trials:
        try:
            origin = f'{source}#{_whole(each["trial"])}'
            fitting = None if origin in known else _ended(study, each, origin)
        except (
            ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError
        ) as error:  # fmt: skip
            raise UserError(
                f'{source}: not a trial as `studies export` writes it: {error}'
            ) from error
        if fitting is not None:
            ended.append(fitting)
            known.add(origin)
    study.add_ended(ended)
    return len(ended)


def _ended(study: 'Study', each: Mapping[str, Any], origin: str) -> EndedTrial | None:
    decisions = adopted(study.space, each['decisions'])
    if decisions is None or each['state'] not in ('COMPLETED', 'INFEASIBLE'):
        return None
    measurements: list[Measurement] = []
    for measured in each['measurements']:
        metrics, step = _metrics(measured), _whole(measured['step'])
        made = rewards_of(study.rewards, with_carried(measurements, metrics), study.space)
        measurements.append(Measurement(step, metrics, made))
    is_stopped = each['stopped'] and each['state'] == 'COMPLETED'
    notes = {
        'origin': origin,
        'seconds': repr(_duration(each['seconds'])),
        'devices': str(_whole(each['devices'])),
        **({'stopped': _text(each['reason'] or '')} if is_stopped else {}),
        **_repeat(each),
    }
    if each['state'] == 'INFEASIBLE':
        return EndedTrial(decisions, measurements, None, _text(each['reason'] or ''), notes)
    metrics = _metrics(each)
    made = rewards_of(study.rewards, metrics, study.space)
    if len(made) < len(study.rewards) or violation(study.search.limits, metrics):
        return None
    if study.suggestions.why_infeasible(decisions):
        return None
    step = max((m.step for m in measurements), default=0)
    return EndedTrial(decisions, measurements, Measurement(step, metrics, made), notes=notes)


def _repeat(each: Mapping[str, Any]) -> dict[str, str]:
    """Which repeat of what it is, in the numbers of the study that it is from."""
    repeat, first = each.get('repeat') or 1, each.get('repeat_of')
    if repeat == 1 or first is None:
        return {}
    return {'repeat': str(_whole(repeat)), 'repeat_of': str(_whole(first))}


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f'expected a whole number: {value!r}')
    return value


def _text(value: Any) -> str:
    """A text that a study can hold: it knows no halves of characters, as JSON does."""
    if not isinstance(value, str):
        raise ValueError(f'expected a text: {value!r}')
    value.encode()
    return value


def _duration(value: Any) -> float:
    seconds = float(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f'expected seconds: {value!r}')
    return seconds


def _metrics(measured: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as a file has them: it may be of anyone's making."""
    metrics = {_text(name): float(value) for name, value in measured['metrics'].items()}
    for name, value in metrics.items():
        if name.startswith('$') or not math.isfinite(value):
            raise ValueError(f'no metric: {name}={value}')
    return metrics


def adopted(space: Space, given: Mapping[str, Any]) -> Decisions | None:
    """The decisions of another space in this one.

    Returns:
        None where they do not fit, or where this space has another value at the place of one that
        it does not decide: the trial would not be what it says.
    """
    decisions = space.adopt(given.get)
    if decisions is None:
        return None
    gone = {path: value for path, value in given.items() if path not in space.readable(decisions)}
    if not gone:
        return decisions
    try:
        made = space.materialize(decisions)
    except (UserError, ValueError):
        return None
    for path, value in gone.items():
        if '[=' in path or not made.sym_has(pg.KeyPath.parse(path)):
            continue
        if match(value, [label(made.sym_get(pg.KeyPath.parse(path)))]) is None:
            return None
    return decisions


def rewards_of(
    rewards: Sequence[Reward], metrics: Mapping[str, float], space: Space
) -> tuple[float, ...]:
    """The rewards that the metrics of another study make here; none where they make none."""
    try:
        return measured_rewards(rewards, metrics, space.sub_experiments)
    except NonFiniteRewardError:
        return ()
