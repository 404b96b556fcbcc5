"""Messages as anybody may send them."""

import types
import typing

import msgpack
from hypothesis import strategies as st

from paxtune.service import schema
from paxtune.storage.vizier_store import StudySpec, TrialProto

_names = st.text(
    st.characters(codec='utf-8', exclude_categories=('C', 'Z')), max_size=12
) | st.sampled_from(['', 'w', 'v'])
_texts = st.text(st.characters(codec='utf-8'), max_size=20)
_notes = st.tuples(
    st.sampled_from(['holder', 'attempt', 'faults', 'losses', 'furthest', 'request', 'history']),
    st.sampled_from(['', 'w', '1', '-1', 'x', '[]', '{', '9' * 50]) | _texts,
)


@st.composite
def trials(draw):
    """The bytes of trials that parse, and may make no sense."""
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
_floats = st.floats(allow_nan=False)
_scalars = {
    schema.Name: _names,
    schema.Request: _names.filter(bool),
    schema.Id: st.integers(1, 3) | st.integers(1, 2**31 - 1),
    str: _texts,
    int: st.integers(-1, 3) | st.integers(-(2**63), 2**63 - 1),
    float: _floats,
    bool: st.booleans(),
    bytes: st.binary(max_size=30) | trials() | _specs,
}


def of_kind(kind):
    """What fits a field of the wire."""
    if kind in _scalars:
        return _scalars[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return st.none() | of_kind(parts[0])
    if origin is list:
        return st.lists(of_kind(parts[0]), max_size=3)
    keys = _names | st.sampled_from(['trial_timeout', 'max_attempts', 'request'])
    return st.dictionaries(keys, of_kind(parts[1]), max_size=3)


def fields_of(kinds):
    """What fits a method."""
    return st.fixed_dictionaries({name: of_kind(kind) for name, kind in kinds.items()})


_anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=20)
    | st.text(st.characters(codec='utf-8'), max_size=20)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=5)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def damaged(draw, method):
    """A request in which one thing is not as it should be, or perhaps it is."""
    kinds = schema.METHODS[method].request
    fields = {'study': 'mine', **draw(fields_of(kinds))}
    name = draw(st.sampled_from(sorted(fields)) | _texts)
    fields[name] = draw(_anything)
    data = bytearray(msgpack.packb(fields))
    if draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def requests(method):
    """Bytes for a method: any at all, any that msgpack writes, nearly right ones, right ones."""
    right = fields_of(schema.METHODS[method].request).map(
        lambda fields: msgpack.packb({'study': 'mine', **fields})
    )
    return st.binary(max_size=60) | _anything.map(msgpack.packb) | damaged(method) | right
