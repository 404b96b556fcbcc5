"""What goes over the wire: the methods of the service, each field with its name and type.

A message is a msgpack map with exactly these fields. Trials and specifications of studies are the
bytes of Vizier's protocol buffers. Nothing else is decoded, and nothing that is sent is executed.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NewType

import msgpack

Name = NewType('Name', str)
"""A short text on one line, as it stands in logs: a worker, a request, a hash."""

Request = NewType('Request', str)
"""What a call is known by when it is sent again: a name that no other call has."""

Id = NewType('Id', int)
"""The number of a trial."""

SERVICE = 'paxtune.v1.Studies'
"""What the methods belong to, in gRPC's sense."""

REJECTED = 'paxtune-rejected'
"""The key of the trailing metadata that says why the service refused."""

MAX_BYTES = 64 * 2**20
"""How long a message may be."""

MAX_ITEMS = 50_000
"""How many items a list or a map in a message may have."""

_MAX_CONTAINERS = 16
_MAX_NAME = 200


class RequestRejectedError(Exception):
    """The service will not do what it was asked to do, and has changed nothing.

    Attributes:
        code: 'fenced', the caller does not hold the trial (any more); 'missing', there is no such
            thing; 'conflict', somebody was faster; 'invalid', it makes no sense.
        message: says so to people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class MalformedError(ValueError):
    """A message that is not what the method takes or answers."""


@dataclasses.dataclass(frozen=True)
class Method:
    """What a method takes, beside the name of the study, and what it answers: field → type."""

    request: Mapping[str, Any]
    reply: Mapping[str, Any]


METHODS: Mapping[str, Method] = {
    'study': Method(
        {'known': Name}, {'spec': bytes | None, 'version': Name, 'created': float | None}
    ),
    'create_study': Method({'spec': bytes}, {'created': bool}),
    'write_notes': Method(
        {'expected': Name, 'notes': dict[str, str], 'request': Request}, {'done': bool}
    ),
    'changes': Method(
        {'generation': Name, 'since': int},
        {
            'generation': Name,
            'revision': int,
            'reset': bool,
            'more': bool,
            'deleted': list[Id],
            'trials': list[bytes],
        },
    ),
    'add': Method(
        {'trials': list[bytes], 'suggest_lock': Name, 'worker': Name, 'request': Request},
        {'trials': list[bytes]},
    ),
    'update': Method(
        {
            'id': Id,
            'expected': Name,
            'trial': bytes,
            'worker': Name,
            'attempt': int,
            'request': Request,
        },
        {'done': bool, 'trial': bytes},
    ),
    'delete': Method({'id': Id}, {}),
    'claim': Method({'worker': Name, 'terms': dict[str, float]}, {'trial': bytes | None}),
    'acquire_suggest_lock': Method({'worker': Name}, {'suggest_lock': Name, 'wait': float}),
    'release_suggest_lock': Method({'suggest_lock': Name}, {}),
    'heartbeat': Method(
        {
            'worker': Name,
            'id': Id,
            'attempt': int,
            'progress': int,
            'terms': dict[str, float],
        },
        {'held': bool, 'reason': str},
    ),
    'lose': Method(
        {'worker': Name, 'reason': str, 'counts': bool, 'is_dead': bool, 'max_attempts': int},
        {'trial': Id | None, 'state': Name},
    ),
    'revoked': Method({'workers': list[Name]}, {'workers': list[Name]}),
}
"""The methods of the service: those of a hub."""


def path(method: str) -> str:
    """What gRPC calls a method.

    Example:
        >>> path('claim')
        '/paxtune.v1.Studies/claim'
    """
    return f'/{SERVICE}/{method}'


def encode_request(method: str, study: str, fields: Mapping[str, Any]) -> bytes:
    """What a client sends.

    Raises:
        MalformedError: the fields are not those of the method.
    """
    return _encode({'study': study, **fields}, _request(method))


def decode_request(method: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """The study that a client means, and the fields of the method.

    Raises:
        MalformedError: it is no such request.

    Example:
        >>> decode_request('delete', encode_request('delete', 'mine', {'id': 3}))
        ('mine', {'id': 3})
    """
    fields = _decode(data, _request(method))
    study = check_study(fields.pop('study'))
    return study, fields


def encode_reply(method: str, fields: Mapping[str, Any]) -> bytes:
    """What the service answers.

    Raises:
        MalformedError: the fields are not those of the method.
    """
    return _encode(fields, METHODS[method].reply)


def decode_reply(method: str, data: bytes) -> dict[str, Any]:
    """What the service answered.

    Raises:
        MalformedError: it is no such answer.
    """
    return _decode(data, METHODS[method].reply)


def check_study(name: str) -> str:
    """The name of a study, which may stand in file names, labels and logs.

    Raises:
        MalformedError: it is no safe name.

    Example:
        >>> check_study('lm.StdlibTunable-2')
        'lm.StdlibTunable-2'
        >>> check_study('../other')
        Traceback (most recent call last):
        paxtune.service.schema.MalformedError: study: expected 1 to 200 of A-Z a-z 0-9 . _ -, ...
    """
    if not re.fullmatch(r'[A-Za-z0-9._-]{1,200}', name) or not name.strip('.'):
        raise MalformedError(
            'study: expected 1 to 200 of A-Z a-z 0-9 . _ -, and not only dots; '
            f'not {shortened(name)}'
        )
    return name


def shortened(text: str) -> str:
    """Something from outside as it may stand in a message or a log.

    Example:
        >>> shortened('two\\nlines')
        "'two\\\\nlines'"
    """
    return ascii(text if len(text) <= 60 else f'{text[:60]}…')


def _request(method: str) -> dict[str, Any]:
    return {'study': str, **METHODS[method].request}


def _encode(fields: Mapping[str, Any], kinds: Mapping[str, Any]) -> bytes:
    data: bytes = msgpack.packb(_fields(fields, kinds), strict_types=True)
    if len(data) > MAX_BYTES:
        raise MalformedError(f'{len(data)} bytes: a message has at most {MAX_BYTES}')
    return data


def _decode(data: bytes, kinds: Mapping[str, Any]) -> dict[str, Any]:
    seen = 0

    def counted(value: Any) -> Any:
        # What is small on the wire can be large in memory: thousands of maps without content.
        nonlocal seen
        seen += 1
        if seen > _MAX_CONTAINERS:
            raise MalformedError('too many lists and maps in it')
        return value

    def as_map(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
        found = dict(counted(pairs))
        if len(found) < len(pairs):
            raise MalformedError('a field stands in it twice')
        return found

    try:
        value = msgpack.unpackb(
            data,
            list_hook=counted,
            object_pairs_hook=as_map,
            ext_hook=_refuse_extension,
            strict_map_key=True,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
        )
    except MalformedError:
        raise
    except (ValueError, TypeError) as error:
        reason = shortened(str(error)) if str(error) else type(error).__name__
        raise MalformedError(f'not what msgpack writes: {reason}') from error
    return _fields(value, kinds)


def _refuse_extension(code: int, data: bytes) -> Any:
    raise MalformedError("types of one's own are not taken")


def _fields(value: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise MalformedError(f'expected a map, not {type(value).__name__}')
    if missing := [name for name in kinds if name not in value]:
        raise MalformedError(f'{", ".join(missing)} missing')
    if unknown := [name for name in value if name not in kinds]:
        raise MalformedError(f'there is no field {shortened(str(unknown[0]))}')
    return {name: _fitted(value[name], kind, name) for name, kind in kinds.items()}


def _fitted(value: Any, kind: Any, where: str) -> Any:
    """The value, if it is of the kind. A whole number may stand for a float."""
    if kind in _CHECKS:
        return _CHECKS[kind](value, where)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType or origin is typing.Union:
        return None if value is None else _fitted(value, parts[0], where)
    if origin is list:
        items = _sized(_exact(value, list, where), where)
        return [_fitted(item, parts[0], where) for item in items]
    pairs = _sized(_exact(value, dict, where), where)
    return {
        _name(key, where): _fitted(item, parts[1], f'{where}.{key}') for key, item in pairs.items()
    }


def _exact(value: Any, kind: type, where: str) -> Any:
    if type(value) is not kind:
        raise MalformedError(f'{where}: expected {kind.__name__}, not {type(value).__name__}')
    return value


def _sized(items: Any, where: str) -> Any:
    if len(items) > MAX_ITEMS:
        raise MalformedError(f'{where}: {len(items)} items; at most {MAX_ITEMS}')
    return items


def _text(value: Any, where: str) -> str:
    text: str = _exact(value, str, where)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedError(f'{where}: no text that can be encoded') from None
    return text


def _name(value: Any, where: str) -> str:
    text = _text(value, where)
    if len(text) > _MAX_NAME or not text.isprintable():
        raise MalformedError(f'{where}: expected at most {_MAX_NAME} printable characters')
    return text


def _request_name(value: Any, where: str) -> str:
    name = _name(value, where)
    if not name:
        raise MalformedError(f'{where}: expected a name that no other call has')
    return name


def _whole(value: Any, where: str) -> int:
    number: int = _exact(value, int, where)
    if not -(2**63) <= number < 2**63:
        raise MalformedError(f'{where}: expected a number of 64 bits')
    return number


def _id(value: Any, where: str) -> int:
    number = _whole(value, where)
    if not 0 < number < 2**31:
        raise MalformedError(f'{where}: expected the number of a trial')
    return number


def _float(value: Any, where: str) -> float:
    if type(value) is int:
        value = float(_whole(value, where))
    number: float = _exact(value, float, where)
    if math.isnan(number):
        raise MalformedError(f'{where}: expected a number, not NaN')
    return number


_CHECKS: Mapping[Any, Any] = {
    Name: _name,
    Request: _request_name,
    Id: _id,
    str: _text,
    int: _whole,
    float: _float,
    bool: lambda value, where: _exact(value, bool, where),
    bytes: lambda value, where: _exact(value, bytes, where),
}
