"""Translation of study and trial records to and from Vizier's protocol buffers.

Vizier's own fields hold parameters, state, measurements and times. One metadata
item holds the rest of a record as JSON. No other module names a metadata key.
"""

import base64
import dataclasses
import datetime
import functools
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, get_type_hints

import msgspec
from vizier._src.service import study_pb2

from paxtune.storage.record_json import decode_json, encode_json
from paxtune.storage.stored_measurements import (
    StoredMeasurements,
    check_measurements,
    decode_measurement,
    encode_measurement,
    reward_name,
)
from paxtune.storage.stored_parameters import read_parameters, write_parameters
from paxtune.study.record import Measurements, Status, StudyRecord, TrialRecord
from paxtune.study.record_checks import DamagedRecordError
from trainer.symbolic.errors import UserError

TrialProto: TypeAlias = study_pb2.Trial
StudySpec: TypeAlias = study_pb2.StudySpec

FORMAT = '4'
"""The version of the stored records. A study of another version is refused."""

MAX_TRIAL_BYTES = 2**23
"""Size limit of a trial that another program made. Parsed, it takes up to thirty times as much."""

MAX_STUDY_BYTES = 2**25
"""Size limit of the record of a study."""

_YEARS = range(1970, 2200)  # Other times cannot be shown in each time zone.
_NAMESPACE = ':paxtune'
_CLIENT_NAMESPACE = ':paxtune-search'  # A service keeps the other one for its own studies.
_FORMAT_KEY, _RECORD_KEY, _DRIVER_KEY = 'format', 'record', 'driver'

_STATES = {
    Status.REQUESTED: TrialProto.State.REQUESTED,
    Status.ACTIVE: TrialProto.State.ACTIVE,
    Status.PAUSED: TrialProto.State.ACTIVE,
    Status.COMPLETED: TrialProto.State.SUCCEEDED,
    Status.STOPPED: TrialProto.State.SUCCEEDED,
    Status.INFEASIBLE: TrialProto.State.INFEASIBLE,
}
_STATUSES = {
    TrialProto.State.REQUESTED: Status.REQUESTED,
    TrialProto.State.ACTIVE: Status.ACTIVE,
    TrialProto.State.STOPPING: Status.ACTIVE,
    TrialProto.State.SUCCEEDED: Status.COMPLETED,
    TrialProto.State.INFEASIBLE: Status.INFEASIBLE,
}
# Fields of a trial that Vizier's own fields hold.
_OWN_FIELDS = ('id', 'parameters', 'created', 'ended', 'measurements', 'final')


def encode_trial(record: TrialRecord, stored: TrialProto | None = None) -> TrialProto:
    """Translates a trial; of a `stored` one it keeps the name and others' metadata."""
    proto = TrialProto(state=_STATES[record.status])
    if stored is not None:
        proto.name = stored.name
        proto.metadata.extend(without_own_metadata(stored.metadata))
    if record.id:
        proto.id = str(record.id)
    write_parameters(proto, record.parameters)
    for field, time in (('start_time', record.created), ('end_time', record.ended)):
        if time is not None:
            getattr(proto, field).FromDatetime(time)
    if record.status is Status.INFEASIBLE:
        proto.infeasible_reason = record.reason or ''
    measured = record.measurements
    if not isinstance(measured, StoredMeasurements):
        measured = StoredMeasurements((), {}) + tuple(measured)
    proto.measurements.extend(measured.protos)
    if record.final is not None:
        proto.final_measurement.CopyFrom(encode_measurement(record.final))
    _write(proto, _RECORD_KEY, _to_json(record, measured.checkpoints))
    return proto


def decode_trial(proto: TrialProto, known: Measurements = ()) -> TrialRecord:
    """Translates a trial of a store. Its measurements are decoded when they are read.

    Args:
        known: measurements of an earlier state of the trial, which are not checked again.

    Raises:
        DamagedRecordError: the trial holds something else than `encode_trial` wrote.
    """
    try:
        stored = decode_json(_trial_json(), _read(proto, _RECORD_KEY, '{}'))
    except DamagedRecordError as error:
        raise DamagedRecordError(f'the record of trial {proto.id} is damaged: {error}') from error
    fields = {name: getattr(stored, name) for name in _json_fields()}
    if proto.state not in _STATUSES:
        raise DamagedRecordError(f'a trial has no state {proto.state}')
    if _STATES[stored.status] != proto.state:  # Another program changed it.
        fields['status'] = _STATUSES[proto.state]
    has_final = fields['status'] in (Status.COMPLETED, Status.STOPPED)
    steps = {str(each.step_count) for each in proto.measurements} if stored.checkpoints else ()
    checkpoints = {step: path for step, path in stored.checkpoints.items() if step in steps}
    has_ended = fields['status'].has_ended
    measured = StoredMeasurements(proto.measurements, checkpoints, has_ended, known)
    final = [proto.final_measurement] if has_final else []
    try:
        check_measurements([*proto.measurements[measured.num_known :], *final])
        for event in stored.history:
            _require_year(event.time)
    except DamagedRecordError as error:
        raise DamagedRecordError(f'the record of trial {proto.id} is damaged: {error}') from error
    return TrialRecord(
        id=_number(proto),
        parameters=read_parameters(proto),
        created=_time(proto, 'start_time'),
        ended=_time(proto, 'end_time'),
        measurements=measured,
        final=decode_measurement(proto.final_measurement, {}) if has_final else None,
        **fields,
    )


def is_own(spec: StudySpec) -> bool:
    """Returns True for a study that paxtune made; False for one of a Vizier client."""
    return _read(spec, _FORMAT_KEY) != ''


def without_own_metadata(metadata: Iterable[Any]) -> list[Any]:
    """Returns the items of metadata that others wrote."""
    return [each for each in metadata if each.ns != _NAMESPACE]


def merge_metadata(container: StudySpec | TrialProto, added: Iterable[Any]) -> None:
    """Adds items of metadata in place; an item replaces one with its namespace and key."""
    known = {(each.ns, each.key): each for each in container.metadata}
    for item in added:
        key = item.ns, item.key
        if key not in known:
            known[key] = container.metadata.add()
        known[key].CopyFrom(item)


def write_algorithm_state(proto: TrialProto, state: Mapping[str, str]) -> None:
    """Keeps the state of an algorithm with a trial of a Vizier client."""
    if state:
        _write(proto, _RECORD_KEY, _to_json(TrialRecord(parameters={}, memo=state), {}))


def read_algorithm_state(proto: TrialProto) -> Mapping[str, str]:
    """Reads the state that an algorithm keeps with a trial."""
    found: Mapping[str, str] = decode_json(_trial_json(), _read(proto, _RECORD_KEY, '{}')).memo
    return found


def pack_trial(record: TrialRecord) -> str:
    """Renders a trial as text for a file; `unpack_trial` reads it."""
    return base64.b64encode(zlib.compress(encode_trial(record).SerializeToString())).decode()


def unpack_trial(text: str) -> tuple[TrialRecord, int]:
    """Reads the text of `pack_trial`, and returns the size of its bytes, too.

    Raises:
        DamagedRecordError: it is another text, or larger than `MAX_TRIAL_BYTES`.
    """
    unpacked = zlib.decompressobj()
    try:
        content = unpacked.decompress(base64.b64decode(text), MAX_TRIAL_BYTES)
    except (ValueError, zlib.error) as error:
        raise DamagedRecordError(f'it is no packed record: {error}') from error
    if not unpacked.eof:
        raise DamagedRecordError('it ends early, or is too long')
    return decode_trial(parse_proto(content)), len(content)


def encode_study(record: StudyRecord, parameters: Iterable[Any] = ()) -> StudySpec:
    """Translates a study; a new one has the search space as Vizier's `parameters`."""
    spec = StudySpec(algorithm=record.algorithm)
    goals = StudySpec.MetricSpec.GoalType
    for i, goal in enumerate(record.goals):
        spec.metrics.add(metric_id=reward_name(i), goal=goals.Value(goal.upper()))
    spec.parameters.extend(parameters)
    return write_study(spec, record)


def write_study(spec: StudySpec, record: StudyRecord) -> StudySpec:
    """Writes a changed record into the stored study, and returns it."""
    _write(spec, _FORMAT_KEY, FORMAT)
    _write(spec, _RECORD_KEY, encode_json(record))
    return spec


def decode_study(spec: StudySpec, source: object = 'the study') -> StudyRecord:
    """Translates a study of a store.

    Args:
        source: its location, for messages.

    Raises:
        UserError: another program or version wrote it, or it is damaged.
    """
    found = _read(spec, _FORMAT_KEY)
    if found != FORMAT:
        if found:
            raise UserError(
                f'{source}: another version of paxtune made the study: it has format {found}, and '
                f'this version reads {FORMAT}. Use that version, or another directory.'
            )
        raise UserError(
            f"{source}: a Vizier client created the study, so it has no experiment. Use Vizier's "
            'client to read and change it.'
        )
    try:
        return decode_json(StudyRecord, _read(spec, _RECORD_KEY))
    except DamagedRecordError as error:
        raise UserError(f'{source}: the record of the study is damaged: {error}') from error


def client_study(record: StudyRecord, parameters: Iterable[Any] = ()) -> StudySpec:
    """Translates a study as `encode_study`, for a client of a Vizier server to write."""
    spec = encode_study(record, parameters)
    for item in spec.metadata:
        item.ns = _CLIENT_NAMESPACE
    return spec


def decode_client_study(spec: StudySpec, source: object) -> StudyRecord:
    """Reads a study of `client_study`; raises UserError as `decode_study`."""
    own = StudySpec()
    for key in (_FORMAT_KEY, _RECORD_KEY):
        _write(own, key, _read(spec, key, namespace=_CLIENT_NAMESPACE))
    return decode_study(own, source)


def client_trial(record: TrialRecord) -> TrialProto:
    """Translates a trial for a Vizier server: one item of metadata holds the whole record."""
    proto = encode_trial(record)
    del proto.metadata[:]
    proto.metadata.add(ns=_CLIENT_NAMESPACE, key=_RECORD_KEY, value=pack_trial(record))
    return proto


def decode_client_trial(proto: TrialProto) -> TrialRecord:
    """Reads a trial of `client_trial`; Vizier's own fields may differ by now.

    Raises:
        DamagedRecordError: another client added the trial, or its record is damaged.
    """
    text = _read(proto, _RECORD_KEY, namespace=_CLIENT_NAMESPACE)
    if not text:
        raise DamagedRecordError(f'another client added trial {proto.id}')
    try:
        record, _ = unpack_trial(text)
    except DamagedRecordError as error:
        raise DamagedRecordError(f'the record of trial {proto.id} is damaged: {error}') from error
    if record.id != _number(proto):
        raise DamagedRecordError(f'trial {proto.id} has the record of trial {record.id}')
    return record


def client_driver(spec: StudySpec) -> str:
    """Reads the name of the search that writes to a study of `client_study`; '' for none."""
    return _read(spec, _DRIVER_KEY, namespace=_CLIENT_NAMESPACE)


def driver_metadata(worker: str) -> StudySpec:
    """Makes the metadata that name the search which writes to a study."""
    spec = StudySpec()
    spec.metadata.add(ns=_CLIENT_NAMESPACE, key=_DRIVER_KEY, value=worker)
    return spec


def parse_proto(content: bytes) -> TrialProto:
    """Reads the bytes of a trial as they are; raises DamagedRecordError if they are no trial."""
    proto: TrialProto = _parsed(TrialProto, content)
    return proto


def read_trial(content: bytes) -> TrialRecord:
    """Reads the bytes of a stored trial; raises DamagedRecordError if they are no trial."""
    return decode_trial(parse_proto(content))


@functools.lru_cache(256)  # A client reads its own trial again and again.
def parse_trial(content: bytes) -> TrialRecord:
    """Reads the bytes of a trial of another process, which may be a new one, of a limited size."""
    return parse_change(content, ())


def parse_change(content: bytes, known: Measurements) -> TrialRecord:
    """Reads a trial as `parse_trial`; `known` is as of `decode_trial`."""
    _require_size(content, MAX_TRIAL_BYTES)
    return decode_trial(parse_proto(content), known)


def parse_study(content: bytes) -> StudySpec:
    """Reads the bytes of a study; raises DamagedRecordError if they are no study."""
    _require_size(content, MAX_STUDY_BYTES)
    spec: StudySpec = _parsed(StudySpec, content)
    return spec


def _require_size(content: bytes, limit: int) -> None:
    if len(content) > limit:
        raise DamagedRecordError(f'{len(content):,} bytes are more than {limit:,}')


def _parsed(kind: Any, content: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise DamagedRecordError(f'these bytes are no {kind.DESCRIPTOR.name}') from error


@functools.cache
def _json_fields() -> dict[str, Any]:
    fields = [each for each in dataclasses.fields(TrialRecord) if each.name not in _OWN_FIELDS]
    return {each.name: getattr(TrialRecord(parameters={}), each.name) for each in fields}


@functools.cache
def _trial_json() -> type[Any]:
    types = get_type_hints(TrialRecord, include_extras=True)
    fields = [
        (name, types[name], msgspec.field(default_factory=dict) if default == {} else default)
        for name, default in _json_fields().items()
    ]
    fields.append(('checkpoints', dict[str, str], msgspec.field(default_factory=dict)))
    return msgspec.defstruct('Trial', fields, forbid_unknown_fields=True)


def _to_json(record: TrialRecord, checkpoints: Mapping[str, str]) -> str:
    named = {name: getattr(record, name) for name in _json_fields()}
    changed = {name: value for name, value in named.items() if value != _json_fields()[name]}
    if checkpoints:
        changed['checkpoints'] = checkpoints
    return encode_json(changed)


def _number(proto: TrialProto) -> int:
    if not re.fullmatch(r'\d{0,18}', proto.id):
        raise DamagedRecordError(f'a trial has no number {proto.id!r}')
    return int(proto.id or 0)


def _time(proto: TrialProto, field: str) -> datetime.datetime | None:
    if not proto.HasField(field):
        return None
    try:
        time: datetime.datetime = getattr(proto, field).ToDatetime(datetime.UTC)
    except (ValueError, OverflowError) as error:
        raise DamagedRecordError(f'a trial has no such {field}: {error}') from error
    _require_year(time)
    return time


def _require_year(time: datetime.datetime) -> None:
    if time.year not in _YEARS:
        raise DamagedRecordError(f'a time of it is in the year {time.year}')


def _read(
    container: StudySpec | TrialProto, key: str, default: str = '', namespace: str = _NAMESPACE
) -> str:
    found = (each for each in container.metadata if each.ns == namespace and each.key == key)
    return next((each.value for each in found), default)


def _write(container: StudySpec | TrialProto, key: str, value: str) -> None:
    for item in container.metadata:
        if item.ns == _NAMESPACE and item.key == key:
            item.value = value
            return
    container.metadata.add(key=key, ns=_NAMESPACE, value=value)
