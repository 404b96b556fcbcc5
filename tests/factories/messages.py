"""Strategies for messages: valid, damaged, and arbitrary."""

import types
import typing

import msgspec
from hypothesis import strategies as st

from paxtune.service import schema
from paxtune.storage.codec import StudySpec, TrialProto

_names = st.text(
    st.characters(codec='utf-8', exclude_categories=('C', 'Z')), max_size=12
) | st.sampled_from(['', 'w', 'v'])
_texts = st.text(st.characters(codec='utf-8'), max_size=20)
_notes = st.tuples(
    st.sampled_from(['record', 'format', 'other']),
    st.sampled_from(
        ['', '3', '[]', '{', '9' * 50, '{}', '{"holder": "w"}', '{"attempt": -1}', '{"status": ""}']
    )
    | _texts,
)


@st.composite
def trials(draw):
    """Draws serialized trials that parse, and may be invalid."""
    proto = TrialProto(
        id=draw(st.sampled_from(['', '1', '2', '-1', 'x'])),
        name=draw(st.sampled_from(['', 'owners/paxtune/studies/mine/trials/1', 'x'])),
        state=draw(st.integers(0, 9)),
        infeasible_reason=draw(_texts),
    )
    for key, value in draw(st.lists(_notes, max_size=4)):
        proto.metadata.add(key=key, value=value, ns=':paxtune')
    return proto.SerializeToString()


_specs = st.lists(_notes, max_size=4).map(
    lambda notes: StudySpec(
        metadata=[{'key': key, 'value': value, 'ns': ':paxtune'} for key, value in notes]
    ).SerializeToString()
)
_bytes = st.binary(max_size=30) | trials() | _specs
_ids = st.integers(1, 3) | st.integers(1, 2**31 - 1)
_options = st.builds(
    schema.WorkerOptions,
    trial_timeout=st.floats(min_value=0.0),
    max_attempts=st.integers(1, 3) | st.integers(1, 2**63 - 1),
)
_values = {
    schema.Name: _names,
    schema.RequestId: _names.filter(bool),
    schema.TrialId: _ids,
    schema.TrialIds: st.lists(_ids, max_size=3),
    schema.Count: st.integers(0, 3) | st.integers(0, 2**63 - 1),
    schema.Names: st.lists(_names, max_size=3),
    schema.Serialized: st.lists(_bytes, max_size=3),
    schema.WorkerOptions: _options,
    schema.Reason: _texts,
    str: _texts,
    bool: st.booleans(),
    bytes: _bytes,
}


def _values_of(kind):
    if kind in _values:
        return _values[kind]
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return st.none() | _values_of(typing.get_args(kind)[0])
    return st.floats(min_value=0.0)  # A time.


def messages(kind, **given):
    """Builds valid messages."""
    fields = {
        field.name: _values_of(field.type)
        for field in msgspec.structs.fields(kind)
        if field.name not in given
    }
    return st.builds(kind, **fields, **{name: st.just(value) for name, value in given.items()})


_anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=20)
    | st.text(st.characters(codec='utf-8'), max_size=20)
    | st.builds(msgspec.msgpack.Ext, st.integers(0, 127), st.binary(max_size=5)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def damaged(draw, method):
    """Draws requests with a field or a byte replaced."""
    request = draw(messages(schema.METHODS[method].request, study='mine'))
    fields = msgspec.structs.asdict(request)
    name = draw(st.sampled_from(sorted(fields)) | _texts)
    fields[name] = draw(_anything)
    data = bytearray(msgspec.msgpack.encode(fields))
    if draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def requests(method):
    """Builds bytes for a method: arbitrary, any MessagePack, damaged and valid requests."""
    valid = messages(schema.METHODS[method].request, study='mine').map(schema.encode)
    return st.binary(max_size=60) | _anything.map(msgspec.msgpack.encode) | damaged(method) | valid
