"""Files never run code: the payloads here do run when PyGlove reads them itself."""

import base64
import contextlib
import enum
import json
import marshal
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.symbolic.component import Component, Number
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import from_json_text, to_json_text


class Leaf(Component):
    size: int = 1
    rate: Number = 0.5
    anything: Any = None

    def check(self) -> None:
        if self.size < 1:
            raise ValueError(f'size must be positive: {self.size}')


class Tree(Component):
    leaves: list[Leaf] = []
    named: dict[str, Leaf] = {}
    anything: Any = None


_INHERITED = 'pyglove.core.symbolic.inferred.ValueFromParentChain'


class Colour(enum.Enum):
    RED = 1


class Marks:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def opaque(marker: Path) -> dict[str, Any]:
    return {
        '_type': 'pyglove.core.utils.json_conversion._OpaqueObject',
        'value': base64.encodebytes(pickle.dumps(Marks(str(marker)))).decode(),
    }


FOREIGN: list[Any] = [
    {'_type': 'function', 'name': 'os.system'},
    {'_type': 'type', 'name': 'os.system'},
    {'_type': 'method', 'name': 'pathlib.Path.cwd'},
    {'_type': 'os.system', 'command': 'true'},
    {'_type': 'trainer.symbolic.serialization.json.loads'},
    {'_type': 'trainer.symbolic.serialization.from_json_text'},
    {'_type': 'trainer.no_such_module.Thing'},
    {'_type': 'trainer.symbolic.errors.UserError'},
    {'_type': 'trainer.'},
    {'_type': 'trainer..component.Component'},
    {'_type': ''},
    {'_type': None},
    {'_type': 3},
    {'_type': ['function'], 'name': 'os.system'},
    {'_type': {'_type': 'function', 'name': 'os.system'}},
    {'_type': 'pyglove.core.symbolic.ref.Ref', 'value': 1},
    {'_type': 'function', 'name': 'f', 'code': '', 'defaults': []},
    ['__tuple__', 1],
]


def everywhere(foreign: Any) -> list[Any]:
    """A tree with something foreign at its top, in fields, lists, dicts and decisions."""
    leaf = json.loads(to_json_text(Leaf()))
    tree = json.loads(to_json_text(Tree()))
    decision = json.loads(to_json_text(Tree([pg.oneof([Leaf(), Leaf(2)])])))
    decision['leaves'][0]['candidates'][1] = foreign
    conditional = json.loads(to_json_text(Tree([pg.oneof([Leaf(), Leaf(2)])])))
    conditional['leaves'][0]['where'] = foreign
    return [
        foreign,
        leaf | {'anything': foreign},
        leaf | {'anything': {'deep': [1, {'er': foreign}]}},
        tree | {'leaves': [leaf, foreign]},
        tree | {'named': {'a': foreign}},
        decision,
        conditional,
    ]


@pytest.mark.parametrize('foreign', FOREIGN)
def test_foreign_names_are_refused(foreign: Any) -> None:
    for tree in everywhere(foreign):
        with pytest.raises(UserError):
            from_json_text(json.dumps(tree), Component)


@pytest.mark.pax('--decode_output_pickle', 'base_hyperparams')
def test_pickles_are_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / 'marker'
    for tree in everywhere(opaque(marker)):
        with pytest.raises(UserError, match='_OpaqueObject'):
            from_json_text(json.dumps(tree), Component)
    assert not marker.exists()
    pg.from_json_str(json.dumps(opaque(marker)), auto_import=False)
    assert marker.exists()  # The payload is real.


@pytest.mark.parametrize('kind', ['function', 'type', 'method', 'foreign_class.Thing'])
def test_modules_that_a_file_names_are_not_imported(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / 'marker'
    source = f'import pathlib\npathlib.Path({str(marker)!r}).touch()\nclass Thing: pass\n'
    module = f'foreign_{kind}' if '.' not in kind else kind.partition('.')[0]
    (tmp_path / f'{module}.py').write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    payload = {'_type': kind, 'name': f'{module}.Thing'}
    for tree in everywhere(payload):
        with pytest.raises(UserError):
            from_json_text(json.dumps(tree), Component)
    assert not marker.exists()
    # PyGlove imports it, and only then finds some of them to be of the wrong kind.
    with contextlib.suppress(TypeError):
        pg.from_json_str(json.dumps(payload))
    assert marker.exists()
    del sys.modules[module]


def test_marshalled_code_is_refused() -> None:
    code = base64.encodebytes(marshal.dumps((lambda: 1).__code__)).decode()
    payload = {'_type': 'function', 'name': 'f', 'code': code, 'defaults': None}
    assert pg.from_json_str(json.dumps(payload))() == 1
    for tree in everywhere(payload):
        with pytest.raises(UserError, match="'function'"):
            from_json_text(json.dumps(tree), Component)


def test_message_names_path_class_and_remedy() -> None:
    tree = json.loads(to_json_text(Tree([Leaf()])))
    tree['leaves'][0]['_type'] = 'lost.module.Leaf'
    with pytest.raises(
        UserError, match=r"file\.json: leaves\[0\] names 'lost\.module\.Leaf'.*--exp"
    ):
        from_json_text(json.dumps(tree), Tree, 'file.json')


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('{', 'not JSON'),
        ('[' * 100_000, 'recursion'),
        ('9' * 5000, 'not JSON'),
        (to_json_text(Tree(anything=pg.oneof([1, 2]))).replace('s": 1', 's": 2'), 'AssertionError'),
        (
            to_json_text(Tree(anything=pg.oneof([1]))).replace(
                '"where": null', f'"where": {{"_type": "{_INHERITED}"}}'
            ),
            'not found under its context',
        ),
        (
            to_json_text(Leaf()).replace('0.5', '[' * 60 + ']' * 60),
            r'^the JSON text: Leaf.rate: expected a number, got .{100,1000}$',
        ),
        (
            '{"_type": "trainer.Derived", "expression": {"_type": '
            '"trainer.Derived", "expression": "x"}}',
            'expected the text of an expression',
        ),
        ('3', 'expected a Leaf, found a int'),
        (to_json_text(Tree()), 'expected a Leaf, found a Tree'),
        (to_json_text(Leaf()).replace('1', '0'), 'size must be positive'),
        (to_json_text(Leaf()).replace('1', 'true'), 'integer'),
        (to_json_text(Leaf()).replace('"size"', '"sise"'), 'sise'),
        (to_json_text(Leaf()).replace('"size"', '"n_:x"'), 'invalid literal'),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_json_text(text, Leaf)


@pytest.mark.parametrize('value', [lambda: 1, Colour.RED, (1, 2), Leaf, Path('x'), print])
def test_unreadable_values_are_not_written(value: Any) -> None:
    with pytest.raises(UserError, match='anything'):
        to_json_text(Tree(anything=value))


@pytest.mark.slow
def test_a_function_under_a_name_with_a_dot_is_named() -> None:
    with pytest.raises(UserError, match=r'^space: layer\.size\.candidates\[0\] is a function \('):
        to_json_text(pg.Dict({'layer.size': pg.oneof([len, 1])}))


def test_a_module_of_ours_is_imported_for_its_class() -> None:
    script = """
import sys
from trainer.symbolic.serialization import from_json_text
assert 'trainer.learner' not in sys.modules
print(from_json_text('{"_type": "trainer.Constant", "warmup_steps": 3}'))
"""
    done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True)
    assert 'warmup_steps = 3' in done.stdout, done.stderr


leaves = st.builds(Leaf, size=st.integers(1, 9), rate=st.floats(0, 1))
templates = st.builds(
    Tree,
    leaves=st.lists(
        leaves | st.builds(lambda found: pg.oneof(found), st.lists(leaves, min_size=1)), max_size=3
    ),
    named=st.dictionaries(st.text('abc-_/', min_size=1), leaves),
    anything=st.just(pg.floatv(1e-3, 1.0, 'log')) | st.none() | st.text(),
)


@given(templates)
@pytest.mark.contract
def test_round_trip(tree: Tree) -> None:
    assert pg.eq(from_json_text(to_json_text(tree), Tree), tree)


type_names = st.sampled_from(
    [f'{__name__}.Leaf', f'{__name__}.Tree', 'hyper.OneOf', 'hyper.Float', 'hyper.ManyOf']
    + [payload['_type'] for payload in FOREIGN if isinstance(payload, dict)]
    + ['pyglove.core.utils.json_conversion._OpaqueObject', 'antigravity.Fly', 'trainer.main.main']
)
keys = st.sampled_from(['name', 'value', 'leaves', 'size', 'candidates', 'where', 'code', 'n_:1'])
atoms = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
trees = st.recursive(
    atoms | st.sampled_from(['__tuple__', 'os.system', 'antigravity.Fly']),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(
            lambda kind, rest: {'_type': kind} | rest,
            type_names,
            st.dictionaries(keys, inner, max_size=4),
        )
    ),
    max_leaves=8,
)


@given(trees)
def test_any_json_is_a_component_or_a_clear_error(tree: Any) -> None:
    try:
        component = from_json_text(json.dumps(tree), Component)
    except UserError:
        pass
    else:
        assert isinstance(component, Component)
    assert 'antigravity' not in sys.modules
