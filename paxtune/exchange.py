"""Trials as plain data: written to files, read back, and carried from one study to another."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyglove as pg

from paxtune.algorithms import PastTrial
from paxtune.decisions import Decisions
from paxtune.labels import label, match
from paxtune.limits import violation
from paxtune.measurement import Measurement, with_carried
from paxtune.rewards import NonFiniteRewardError, Reward, measured_rewards
from paxtune.search_space import Space
from paxtune.study_record import FORMAT
from trainer.errors import UserError
from trainer.serialization import to_json_text

if TYPE_CHECKING:
    from paxtune.searching import Search
    from paxtune.study import Study
    from paxtune.trial import Trial


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
        'warm_start': trial.warm_start,
        'created': trial.created.isoformat(),
        'ended': trial.completed.isoformat() if trial.completed else None,
        'seconds': trial.seconds,
        'devices': trial.devices,
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
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f'{path}: cannot be read: {error}') from error
    if not isinstance(found, dict) or not isinstance(found.get('trials'), list):
        raise UserError(f'{path}: this is nothing that `studies export` writes')
    return found


def differences_of_data(study: 'Study', exported: Mapping[str, Any]) -> list[str]:
    """How the data differ that the trials of an exported study saw, for people."""
    there = exported.get('data') or {}
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
    ended = []
    for each in trials:
        try:
            origin = f'{source}#{each["trial"]}'
            fitting = None if origin in known else _ended(study, each, origin)
        except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f'{source}: not a trial as `studies export` writes it: {error}'
            ) from error
        if fitting is not None:
            ended.append(fitting)
            known.add(origin)
    study.add_ended(ended)
    return len(ended)


def _ended(study: 'Study', each: Mapping[str, Any], origin: str) -> EndedTrial | None:
    decisions = _adopted(study.space, each['decisions'])
    if decisions is None or each['state'] not in ('COMPLETED', 'INFEASIBLE'):
        return None
    measurements: list[Measurement] = []
    for measured in each['measurements']:
        metrics, step = _metrics(measured), _whole(measured['step'])
        made = _rewards(study.rewards, with_carried(measurements, metrics), study.space)
        measurements.append(Measurement(step, metrics, made))
    is_stopped = each['stopped'] and each['state'] == 'COMPLETED'
    notes = {
        'origin': origin,
        'seconds': repr(_duration(each['seconds'])),
        'devices': str(_whole(each['devices'])),
        **({'stopped': str(each['reason'])} if is_stopped else {}),
    }
    if each['state'] == 'INFEASIBLE':
        return EndedTrial(decisions, measurements, None, str(each['reason']), notes)
    metrics = _metrics(each)
    made = _rewards(study.rewards, metrics, study.space)
    if len(made) < len(study.rewards) or violation(study.search.limits, metrics):
        return None
    if study.suggestions.why_infeasible(decisions):
        return None
    step = max((m.step for m in measurements), default=0)
    return EndedTrial(decisions, measurements, Measurement(step, metrics, made), notes=notes)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f'expected a whole number: {value!r}')
    return value


def _adopted(space: Space, given: Mapping[str, Any]) -> Decisions | None:
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


def _duration(value: Any) -> float:
    seconds = float(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f'expected seconds: {value!r}')
    return seconds


def _metrics(measured: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as a file has them: it may be of anyone's making."""
    metrics = {name: float(value) for name, value in measured['metrics'].items()}
    for name, value in metrics.items():
        if name.startswith('$') or not math.isfinite(value):
            raise ValueError(f'no metric: {name}={value}')
    return metrics


def fork(source: 'Study', study: 'Study') -> int:
    """Adds the ended trials of another study to a study of a changed experiment.

    Decisions are carried over by path. One that the source did not make is taken from the trial's
    concrete experiment, where the new space has it among its candidates.

    Returns:
        How many trials were added.
    """
    return import_trials(study, list(_carried(source, study.space)), _name(source))


def _name(source: 'Study') -> str:
    return 'memory' if source.directory is None else str(source.directory.resolve())


def priors(sources: Sequence['Study'], space: Space, search: 'Search') -> list[dict[str, Any]]:
    """What an algorithm may learn from other studies' completed trials, as JSON data.

    Raises:
        UserError: no trial of a source fits into the space.
    """
    found: list[dict[str, Any]] = []
    rewards = search.rewards
    for source in sources:
        before = len(found)
        for each in _carried(source, space):
            decisions = _adopted(space, each['decisions'])
            made = _rewards(rewards, each['metrics'], space)
            complete = len(made) == len(rewards) and each['state'] == 'COMPLETED'
            if decisions is not None and complete:
                scores = [r.score(v) for r, v in zip(rewards, made, strict=True)]
                found.append({'decisions': decisions, 'scores': scores})
        if len(found) == before:
            raise UserError(
                f'--prior_studies: none of the {len(source.trials)} trials in {source.directory} '
                'was completed, has the metrics of the reward and fits into the search space'
            )
    return found


def past_trials(data: Sequence[Mapping[str, Any]]) -> list[PastTrial]:
    """What `priors` returned, as an algorithm sees it: with numbers up to 0, in their order."""
    return [
        PastTrial(i + 1 - len(data), dict(each['decisions']), 'completed', tuple(each['scores']))
        for i, each in enumerate(data)
    ]


def _carried(source: 'Study', space: Space) -> Iterator[dict[str, Any]]:
    for trial in source.trials:
        each = content(trial)
        if trial.is_terminal:
            yield each | {'decisions': dict(each['decisions']) | _constants(trial, space)}


def _constants(trial: 'Trial', space: Space) -> dict[str, Any]:
    """What stands at the decisions of a space in a trial that did not decide it."""
    missing = [path for path in space.paths if path not in trial.decisions]
    if not missing:
        return {}
    try:
        experiment = trial.materialize()
    except (UserError, ValueError):
        return {}
    found = {}
    for path in missing:
        if '[=' not in path and experiment.sym_has(pg.KeyPath.parse(path)):
            found[path] = label(experiment.sym_get(pg.KeyPath.parse(path)))
    return found


def _rewards(
    rewards: Sequence[Reward], metrics: Mapping[str, float], space: Space
) -> tuple[float, ...]:
    try:
        return measured_rewards(rewards, metrics, space.sub_experiments)
    except NonFiniteRewardError:
        return ()
