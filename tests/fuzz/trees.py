"""JSON of the package's own files, with all kinds of changes."""

import base64
import copy
import json
import marshal
import pickle
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import watch
from tests.fuzz.texts import CODE, HUGE, cut


class _Calls:
    """Calls the trap when it is unpickled."""

    def __reduce__(self) -> Any:
        return watch.trap, ()


_PICKLE = base64.encodebytes(pickle.dumps(_Calls())).decode()
_CODE = base64.encodebytes(marshal.dumps((lambda: watch.trap()).__code__)).decode()
_OPAQUE = 'pyglove.core.utils.json_conversion._OpaqueObject'

HOSTILE: list[Any] = [
    {'_type': _OPAQUE, 'value': _PICKLE},
    {'_type': 'function', 'name': 'f', 'code': _CODE, 'defaults': None},
    {'_type': 'function', 'name': 'os.system'},
    {'_type': 'function', 'name': 'tests.fuzz.watch.trap'},
    {'_type': 'function', 'name': 'fuzz_canary.trap'},
    {'_type': 'type', 'name': 'fuzz_canary.Thing'},
    {'_type': 'type', 'name': 'builtins.eval'},
    {'_type': 'method', 'name': 'tests.fuzz.watch.Trap.made'},
    {'_type': 'annotation', 'name': 'fuzz_canary.Thing'},
    {'_type': 'module', 'name': 'fuzz_canary'},
    {'_type': 'tests.fuzz.watch.Trap'},
    {'_type': 'tests.fuzz.watch.trap_functor'},
    {'_type': 'tests.fuzz.watch.trap', 'x': 1},
    {'_type': 'fuzz_canary.Thing', 'x': 1},
    {'_type': 'os.system', 'command': 'true'},
    {'_type': 'builtins.exec', 'source': '1'},
    {'_type': 'trainer.symbolic.serialization.json.loads'},
    {'_type': 'trainer.no_such_module.Thing'},
    {'_type': 'pyglove.core.symbolic.ref.Ref', 'value': 1},
    {'_type': 'pyglove.core.symbolic.inferred.ValueFromParentChain'},
    {'_type': 'trainer.Derived', 'expression': "__import__('fuzz_canary')"},
    {'_type': 'trainer.Derived', 'expression': 'rate.__class__'},
    {'_type': 'trainer.Derived', 'expression': 3},
    {'_type': 'trainer.Component'},
    {'_type': 'hyper.Float', 'min_value': 0, 'max_value': 1},
    {'_type': 'hyper.OneOf', 'candidates': [{'_type': 'hyper.OneOf', 'candidates': []}]},
    {'_type': 'hyper.ManyOf', 'num_choices': 10**9, 'candidates': [1], 'choices_distinct': False},
    {'_type': ''},
    {'_type': '.'},
    {'_type': None},
    {'_type': ['function']},
    {'_type': '__tuple__'},
    {'__tuple__': [1]},
    {'__ref__': 0},
    ['__tuple__', 1],
    ['__tuple__'],
]
_ATOMS: list[Any] = [
    None, True, False, 0, 1, -1, 0.5, -0.0, 1e308, float('nan'), float('inf'), -float('inf'),
    2**63, -(2**63), 10**30, 10**400, 10**4000, '', 'x', '1', 'nan', '0.01', '\0', '\ud800',
    'é' * 9, '\n' * 9, 'a' * 20_000, '__tuple__', '_type', 'os.system', '$reward', 'COMPLETED',
    'loss', 'Dense', [], {}, [[]], [{}], {'': 0}, {'x.y': 1}, {'_type': 1}, {'x[0]': None},
    {'[': 1}, {'\ud800': 1}, {'$x': 1},
]  # fmt: skip
_KEYS = [
    '', '_type', '__tuple__', 'x', 'rate', 'layer', 'n_:x', 'a.b', '[0]', '\ud800', '\0', '$x',
    '__class__', 'sym_init_args', 'allow_partial', 'root_path', '__ref__',
]  # fmt: skip


def anything() -> st.SearchStrategy[Any]:
    """Plain data, hostile and not."""
    atoms = st.one_of(
        st.sampled_from(_ATOMS),
        st.sampled_from(HOSTILE),
        st.integers(),
        st.floats(),
        st.text(max_size=6),
        st.sampled_from([*CODE, *HUGE]),
    )
    keys = st.one_of(st.sampled_from(_KEYS), st.text(max_size=4))
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=5,
    )


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """A copy of plain data with one to three changes somewhere in it."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        places = list(_places(tree))
        if not places:
            break
        owner, key = draw(st.sampled_from(places))
        _change(draw, owner, key, places)
    return tree


def _change(draw: st.DrawFn, owner: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
    how = draw(st.sampled_from(['replace', 'replace', 'near', 'delete', 'rename', 'copy', 'wrap']))
    if how == 'replace':
        owner[key] = copy.deepcopy(draw(anything()))
    elif how == 'near':
        owner[key] = _near(draw, owner[key])
    elif how == 'delete':
        del owner[key]
    elif how == 'rename' and isinstance(owner, dict):
        owner[draw(st.one_of(st.sampled_from(_KEYS), st.text(max_size=4)))] = owner.pop(key)
    elif how == 'copy':
        other, name = draw(st.sampled_from(places))
        owner[key] = copy.deepcopy(other[name])
    elif how == 'wrap':
        owner[key] = draw(
            st.sampled_from([[owner[key]], {'x': owner[key]}, ['__tuple__', owner[key]]])
        )


def _near(draw: st.DrawFn, value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw(st.one_of(st.integers(-3, 9), st.integers(), st.sampled_from([10**9, 2**63])))
    if isinstance(value, float):
        return draw(st.floats())
    if isinstance(value, str):
        return draw(st.one_of(st.text(max_size=9), cut(st.just(value))))
    return copy.deepcopy(draw(anything()))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, dict | list):
        for key, child in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
            yield tree, key
            yield from _places(child)


@st.composite
def texts(draw: st.DrawFn, tree: Any) -> str:
    """JSON like that of plain data: changed as data, changed as text, or something else."""
    how = draw(st.sampled_from(['data', 'data', 'data', 'data', 'text', 'twice', 'deep', 'other']))
    if how == 'data':
        return json.dumps(draw(changed(tree)))
    if how == 'text':
        return draw(cut(st.just(json.dumps(tree))))
    if how == 'twice':
        return _with_a_key_twice(draw, json.dumps(tree))
    if how == 'deep':
        return _deepened(draw, json.dumps(tree))
    return draw(st.one_of(anything().map(json.dumps), st.text(max_size=20), st.sampled_from(HUGE)))


def _with_a_key_twice(draw: st.DrawFn, text: str) -> str:
    key = draw(st.sampled_from(['_type', 'trial', 'rate', 'trials', 'decisions', 'search']))
    value = draw(st.one_of(st.sampled_from(HOSTILE), anything()))
    places = [i for i, character in enumerate(text) if character == '{']
    if not places:
        return text
    at = draw(st.sampled_from(places)) + 1
    rest = text[at:]
    comma = '' if rest.lstrip().startswith('}') else ', '
    return f'{text[:at]}{json.dumps(key)}: {json.dumps(value)}{comma}{rest}'


def _deepened(draw: st.DrawFn, text: str) -> str:
    depth = draw(st.sampled_from([10, 100, 300, 900, 990, 1000, 5000, 100_000]))
    left, right = draw(
        st.sampled_from([('[', ']'), ('{"x": ', '}'), ('{"layer": ', '}'), ('[', '')])
    )
    deep = left * depth + '1' + right * depth
    places = [i for i in range(len(text)) if text.startswith(': ', i)]
    if not places or draw(st.booleans()):
        return deep
    at = draw(st.sampled_from(places)) + 2
    end = min((i for i in (text.find(',', at), text.find('}', at)) if i >= 0), default=len(text))
    return text[:at] + deep + text[end:]
