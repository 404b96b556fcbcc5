"""Checks of records that other programs made: everything that the readers of a study rely on.

A service, a recovery and an import check each record before they write it. The types of a record's
fields have the wider bounds that hold for each record that is read.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from paxtune.objectives.measurement import Measurement
from paxtune.search_space.decisions import Decisions, all_slots, is_legal, spec_from_json
from paxtune.search_space.parameters import reader
from paxtune.study import invariants, notes
from paxtune.study.attributes import validated
from paxtune.study.record import MAX_SECONDS, MAX_TEXT, StudyRecord, TrialRecord
from paxtune.study.redefinition import MUTABLE
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import from_json_text

MAX_STEP = 2**53
MAX_NUMBER = 2**31 - 1
"""The largest number of a trial."""

_MAX_NAME = 1000
_MAX_DEVICES = 10**6
_MAX_REPLICATES = 10**6
_MAX_EVENTS = 1000
_ROUNDING = 1.0  # Seconds that differences of clocks may fall below zero.


class DamagedRecordError(UserError):
    """Stored bytes are no record of a study or a trial."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """The parts of a study that its trials must fit.

    Attributes:
        num_rewards: of each completed trial.
        read_parameters: turns stored parameters into decisions, or raises ValueError.
    """

    num_rewards: int
    read_parameters: Callable[[Mapping[str, str | float]], Decisions]

    @classmethod
    def of(cls, study: StudyRecord) -> 'Rules':
        """Reads the rules of a study; raises DamagedRecordError where its space is none."""
        try:
            return cls(len(study.goals), _reader(study.spec))
        except ValueError as error:
            raise DamagedRecordError(str(error)) from error


@functools.lru_cache(maxsize=16)
def _reader(spec: str) -> Callable[[Mapping[str, str | float]], Decisions]:
    return reader(spec_from_json(spec))


def check_trial(
    record: TrialRecord, rules: Rules, newest: int | None = None, num_known: int = 0
) -> None:
    """Checks a trial that another program made.

    Args:
        record: its number is 0 before it is added.
        rules: of its study.
        newest: the number of the newest trial; None where not all are known.
        num_known: the number of measurements at the start that were checked before.

    Raises:
        DamagedRecordError: the record contradicts itself, or does not fit its study.
    """
    try:
        _check_trial(record, rules, newest, num_known)
    except DamagedRecordError as error:
        raise DamagedRecordError(f'trial {record.id or "without a number"}: {error}') from error


def _check_trial(record: TrialRecord, rules: Rules, newest: int | None, num_known: int) -> None:
    _require(0 <= record.id <= MAX_NUMBER, f'its number is {record.id}')
    if broken := invariants.broken_state(record):
        raise DamagedRecordError(broken)
    try:
        rules.read_parameters(record.parameters)
        for name, value in record.attributes.items():
            validated(name, value)
    except ValueError as error:
        raise DamagedRecordError(str(error)) from error
    _check_measurements(record, rules.num_rewards, num_known)
    _check_texts(record)
    _check_numbers(record)
    _check_lineage(record, record.id or (newest or 0) + 1, newest)


def _check_measurements(record: TrialRecord, num_rewards: int, num_known: int) -> None:
    before = -1
    for each in record.measurements[max(num_known - 1, 0) : num_known]:
        before = each.step
    for each in record.measurements[num_known:]:
        _check_measurement(each)
        if each.step <= before:
            raise DamagedRecordError(f'step {each.step} comes after step {before}')
        if each.rewards and len(each.rewards) != num_rewards:
            raise DamagedRecordError(
                f'step {each.step} has {len(each.rewards)} rewards, and the study {num_rewards}'
            )
        if each.checkpoint is not None and not is_inside(each.checkpoint, record.id):
            raise DamagedRecordError(
                f'the checkpoint of step {each.step} is not in the directory of the trial: '
                f'{each.checkpoint!r:.200}'
            )
        before = each.step
    if record.final is not None:
        _check_measurement(record.final)
        count = len(record.final.rewards)
        _require(count == num_rewards, f'it has {count} rewards, and the study {num_rewards}')


def _check_measurement(measured: Measurement) -> None:
    if not 0 <= measured.step <= MAX_STEP:
        raise DamagedRecordError(f'there is no step {measured.step}')
    if not 0.0 <= measured.elapsed_seconds <= MAX_SECONDS:
        raise DamagedRecordError(
            f'step {measured.step} came after {measured.elapsed_seconds} seconds'
        )
    if any(name.startswith('$') or len(name) > MAX_TEXT for name in measured.metrics):
        raise DamagedRecordError(f'a metric of step {measured.step} has no name of a metric')


def is_inside(path: str, trial: int) -> bool:
    """Returns True for a relative path, and for one in the directory of a trial.

    Example:
        >>> is_inside('/runs/study/trials/0003-x=1/checkpoints/10', 3)
        True
        >>> is_inside('/etc/passwd', 3), is_inside('a/../../b', 3)
        (False, False)
    """
    parts = PurePosixPath(path).parts
    if not path.isprintable() or len(path) > MAX_TEXT or '..' in parts:
        return False
    is_relative = not path.startswith('/') and '://' not in path
    return is_relative or any(is_of_trial(each, trial) for each in parts)


def is_of_trial(name: str, trial: int) -> bool:
    """Returns True for the name of the directory of a trial.

    Example:
        >>> is_of_trial('0003-x=1', 3), is_of_trial('0003', 3), is_of_trial('00031-x=1', 3)
        (True, True, False)
    """
    return name.partition('-')[0] == f'{trial:04d}'


def _check_texts(record: TrialRecord) -> None:
    _require(len(record.history) <= _MAX_EVENTS, f'it has {len(record.history):,} events')
    texts = [record.reason or '', *record.costs, *record.profile, *record.non_finite]
    texts += [text for each in record.history for text in (each.detail, each.worker, each.event)]
    longest = max(map(len, texts))
    _require(longest <= MAX_TEXT, f'a text of it has {longest:,} characters')
    names = [record.holder, record.requests.added, *record.requests.changed]
    _require(all(len(each) <= _MAX_NAME for each in names), 'its worker has a long name')


def _check_numbers(record: TrialRecord) -> None:
    _require(record.run_time.seconds >= 0.0, f'it ran {record.run_time.seconds} seconds')
    _require(record.suggest_seconds >= 0.0, f'its suggestion took {record.suggest_seconds} seconds')
    least = min(record.profile.values(), default=0.0)
    _require(least >= -_ROUNDING, f'a phase of it took {least} seconds')
    devices = record.run_time.devices
    _require(0 <= devices <= _MAX_DEVICES, f'it ran on {devices} devices')
    _check_steps([*record.pauses, *record.non_finite.values()])
    _check_steps(each.step for each in record.history)
    _require(record.pauses == tuple(sorted({*record.pauses})), 'its pauses are not in order')
    _require(min(dataclasses.astuple(record.failures)) >= 0, 'it counts less than no failure')


def _check_steps(steps: Iterable[int | None]) -> None:
    for step in steps:
        _require(step is None or 0 <= step <= MAX_STEP, f'there is no step {step}')


def _check_lineage(record: TrialRecord, number: int, newest: int | None) -> None:
    """Checks that a trial comes after the trials that it was derived from."""
    lineage = record.lineage
    is_name = 0 < len(lineage.origin) <= MAX_TEXT
    _require(is_name, f'its origin has {len(lineage.origin):,} characters')
    forked_from, step = lineage.forked_from or (None, None)
    derived = lineage.parent, lineage.retry_of, lineage.replaces, forked_from
    for other in (*derived, lineage.replicate_of_here):
        _require(other is None or 0 < other < number, f'it is derived from trial {other}')
    source, newest = lineage.warm_start, MAX_NUMBER if newest is None else newest
    is_known = source is None or (0 < source <= newest and source != number)
    _require(is_known, f'it begins with the weights of trial {source}')
    _check_steps([step, lineage.warm_start_step])
    replicate, of = lineage.replicate, lineage.replicate_of
    _require(1 <= replicate <= _MAX_REPLICATES, f'it is replicate {replicate}')
    _require(of is None or of > 0, f'it replicates trial {of}')


def check_study(record: StudyRecord) -> Rules:
    """Checks the record of a study that another program made, and returns its rules.

    Raises:
        DamagedRecordError: it contradicts itself, or readers cannot read it.
    """
    rules = Rules.of(record)
    for goal in record.goals:
        _require(goal in ('minimize', 'maximize'), f'there is no goal {goal!r:.100}')
    for prior in record.priors:
        count = len(prior.scores)
        _require(count == rules.num_rewards, f'a prior has {count} scores')
    _check_known(record)
    check_requests(record)
    return rules


def _check_known(record: StudyRecord) -> None:
    legal = {slot.id.path: slot for slot in all_slots(spec_from_json(record.spec))}
    for id_, known in (record.known or {}).items():
        _require(id_ in legal, f'a known value is of no decision: {id_!r:.200}')
        _require(is_legal(legal[id_], known.value), f'the known value of {id_} is {known.value!r}')
        _require(0.0 <= known.deviation <= 1.0, f'the known value of {id_} has no deviation')
        _require(len(known.reason) <= MAX_TEXT, f'the known value of {id_} has a long reason')


def _check_budgets(record: StudyRecord) -> None:
    """Checks the parts of a search that may change."""
    value, search = _object('value', record.value), _object('search', record.search or 'null')
    if search is None:
        search = value.get('search')
    for name, kind in MUTABLE.items() if search is not None else ():
        try:
            from_json_text(json.dumps(search[name]), kind, f'search.{name}')
        except (UserError, LookupError, TypeError) as error:
            raise DamagedRecordError(f'search.{name} is none: {error}') from error


def check_requests(record: StudyRecord) -> None:
    """Checks the fields of a study that may change; raises DamagedRecordError."""
    _check_budgets(record)
    exhausted = record.exhausted
    _require(exhausted is None or exhausted >= 0, f'it was exhausted at {exhausted} trials')
    for number in (*record.stop_requests, *record.notes):
        _require(0 < number <= MAX_NUMBER, f'a note, or a request, is on trial {number}')
    for text in (record.note, *record.notes.values()):
        _require(len(text) <= notes.MAX_LENGTH, f'a note has {len(text):,} characters')
    least = min(record.profile.values(), default=0.0)
    _require(least >= -_ROUNDING, f'a phase of it took {least} seconds')


def _object(name: str, text: str) -> Any:
    """Reads an object, or null, of JSON."""
    try:
        found = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise DamagedRecordError(f'its {name} is no JSON: {error}') from error
    _require(isinstance(found, dict) or text == 'null', f'its {name} is no JSON object')
    return found


def _require(is_sound: bool, problem: str) -> None:
    if not is_sound:
        raise DamagedRecordError(problem)
