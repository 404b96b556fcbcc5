"""Requests to a service: valid ones, with hostile values in fields of structs, protos and JSON."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTEGERS = [0, 1, -1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63), 2**64, 10**30]
FLOATS = [0.0, -1.0, 1e-320, 1e308, -1e308, float('nan'), float('inf'), -float('inf'), 1e11]
TEXTS = [
    *('', ' ', '$reward', '$', '=1+1', '/etc/passwd', '../../x', '{}', '[]', 'null', 'NaN'),
    *('a' * 300, 'b' * 2**20, '\0', '\x1b[2J', '\u202e', '[' * 5000, '9' * 5000, '#', 'é'),
    *('0001-01-01T00:00:00Z', '9999-12-31T23:59:59-23:59', '2026-01-01T00:00:00', 'completed'),
    *(':paxtune', ':paxtune-search', 'record', 'format'),  # Keys of paxtune's metadata.
    *('owners/paxtune/studies/mine', 'owners/paxtune/studies/mine/trials/1'),
]
_NO_UTF8 = '\ud800'  # JSON can contain half of a surrogate pair.
_REPEATED = '"status": "completed", "attempt": 7, "holder": "x", "lineage": {"parent": 1}'
_SHARE_OF_VALID, _SHARE_OF_VALID_FIELDS = 0.1, 0.5
_MOST_CHANGES = 3


class Changer:
    """Changes messages at random, the same each time for a seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def request(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of a request, up to three of which are changed."""
        changed = dict(fields)
        if self._rng.random() < _SHARE_OF_VALID_FIELDS or not changed:
            return changed  # A trial, or a study, in it may be hostile.
        for _ in range(self._rng.randint(1, _MOST_CHANGES)):
            name = self._rng.choice(list(changed))
            changed[name] = self.value(changed[name])
        return changed

    def value(self, value: Any) -> Any:
        """Returns a value of the same type, or seldom of another one."""
        if self._rng.random() < 0.05:
            return self._rng.choice([None, 1, 'x', b'\xff', [], {}, True, 0.5])
        match value:
            case bool():
                return not value
            case int():
                return self._rng.choice([*INTEGERS, value + 1, value - 1])
            case float():
                return self._rng.choice(FLOATS)
            case str():
                return self._rng.choice([*TEXTS, _NO_UTF8, value[:-1], value * 2])
            case bytes():
                return self._bytes(value)
            case list() | tuple():
                return self._list([*value])
            case dict():
                return self._dict(value)
        return value

    def _bytes(self, value: bytes) -> bytes:
        at = self._rng.randrange(len(value) + 1)
        return self._rng.choice([b'', value[:at], value[:at] + b'\xff' + value[at:]])

    def _list(self, value: list[Any]) -> list[Any]:
        index = self._rng.randrange(len(value)) if value else 0
        match self._rng.randrange(4):
            case 0:
                return value[:index] + value[index + 1 :]
            case 1:
                return value * 3
            case 2:
                return value[::-1]
        return value[:index] + [self.value(each) for each in value[index : index + 1]]

    def _dict(self, value: dict[str, Any]) -> dict[str, Any]:
        if not value or self._rng.random() < 0.15:
            return value | {self._rng.choice([*TEXTS[:18], 'steps']): self._rng.choice(FLOATS)}
        name = self._rng.choice(list(value))
        if self._rng.random() < 0.1:
            return {key: each for key, each in value.items() if key != name}
        return value | {name: self.value(value[name])}

    def proto(self, message: Message) -> None:
        """Changes a field of a protocol buffer in place: any field, at any depth."""
        descriptor: Any = message.DESCRIPTOR
        fields = descriptor.fields
        if not fields:
            return
        field = self._rng.choice(fields)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.message_type.GetOptions().map_entry:
                return
            self._message(message, field)
        elif field.is_repeated:
            getattr(message, field.name).append(self._scalar(field))
        elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            setattr(message, field.name, self._text(getattr(message, field.name), field))
        else:
            setattr(message, field.name, self._scalar(field))

    def _message(self, message: Message, field: FieldDescriptor) -> None:
        if not field.is_repeated:
            if self._rng.random() < 0.1:
                message.ClearField(field.name)
            else:
                self.proto(getattr(message, field.name))
            return
        items = getattr(message, field.name)
        what = self._rng.randrange(8)
        if what == 0 and items:
            del items[self._rng.randrange(len(items))]
        elif what == 1 and items:
            items.add().CopyFrom(self._rng.choice(items))
        elif what == 2 or not items:
            self.proto(items.add())
        else:
            self.proto(self._rng.choice(items))

    def _text(self, value: Any, field: FieldDescriptor) -> Any:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._bytes(value)
        try:
            found = msgspec.json.decode(value) if value[:1] == '{' else None
        except msgspec.DecodeError:
            found = None
        if found is None:
            return self._rng.choice(TEXTS)
        for _ in range(self._rng.randint(1, _MOST_CHANGES)):
            found = self._json(found)
        text = json.dumps(found, default=str)
        if isinstance(found, dict) and found and self._rng.random() < 0.1:
            # Keys that are there already, before and after them.
            return self._rng.choice([f'{{{_REPEATED}, {text[1:]}', f'{text[:-1]}, {_REPEATED}}}'])
        return text

    def _json(self, value: Any) -> Any:
        """Changes a value of JSON, at any depth."""
        if isinstance(value, dict) and value and self._rng.random() < 0.8:
            name = self._rng.choice(list(value))
            return value | {name: self._json(value[name])}
        if isinstance(value, list) and value and self._rng.random() < 0.8:
            index = self._rng.randrange(len(value))
            return [*value[:index], self._json(value[index]), *value[index + 1 :]]
        return self.value(value)

    def _scalar(self, field: FieldDescriptor) -> Any:
        if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            return self._rng.choice(FLOATS)
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self._rng.random() < 0.5
        if field.type == FieldDescriptor.TYPE_ENUM:
            return self._rng.choice([*field.enum_type.values_by_number])
        if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            return 'x' if field.type == FieldDescriptor.TYPE_STRING else b'\xff'
        bits, low = (31 if '32' in str(field.type) else 63), -1
        unsigned = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)
        low = 0 if field.type in unsigned else -(2**bits)
        high = 2**31 - 1 if field.cpp_type in _SMALL else 2**63 - 1
        return self._rng.choice([each for each in INTEGERS if max(low, -high - 1) <= each <= high])

    def encoded(self, message: Message, is_of: Callable[[], Message]) -> bytes:
        """Returns the bytes of a changed copy, or seldom bytes that are none."""
        changed = is_of()
        changed.CopyFrom(message)
        if self._rng.random() < _SHARE_OF_VALID:
            return bytes(changed.SerializeToString())
        for _ in range(self._rng.randint(1, _MOST_CHANGES)):
            self.proto(changed)
        content = bytes(changed.SerializeToString())
        return self._bytes(content) if self._rng.random() < 0.05 else content


_SMALL = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32)
