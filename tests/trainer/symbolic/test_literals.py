"""Values on the command line."""

import contextlib
import math
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.symbolic.component import Component, Number
from trainer.symbolic.errors import UserError
from trainer.symbolic.literals import parse
from trainer.symbolic.ranges import intv


class Heavyball(Component):
    momentum: Number = 0.9
    nesterov: bool = False
    sizes: list[int] = []


class Wrapped(Component):
    inner: Heavyball
    name: str = 'w'

    def check(self) -> None:
        if self.name == 'bad':
            raise ValueError('bad name')


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('1', 1),
        ('-1', -1),
        ('1e-3', 1e-3),
        ('-2.5', -2.5),
        ('true', True),
        ('False', False),
        ('null', None),
        ('None', None),
        ('gelu', 'gelu'),
        (' gelu ', 'gelu'),
        ("'3'", '3'),
        ('"a b"', 'a b'),
        ('/data/c4', '/data/c4'),
        ('data/c4', 'data/c4'),
        ('gs://bucket/c4', 'gs://bucket/c4'),
        ('c4/en:3.0.1', 'c4/en:3.0.1'),
        ('lm.C4', 'lm.C4'),
        ('adam-w', 'adam-w'),
        ('/data/*.json.gz', '/data/*.json.gz'),
        ('2*3', '2*3'),
        ('1j', '1j'),
        ('...', '...'),
        ('0777', '0777'),
        (r'C:\data', r'C:\data'),
        ('[1, 2]', [1, 2]),
        ('(1, 2)', [1, 2]),
        ('1, 2', [1, 2]),
        ('[]', []),
        ('[a, true, [null]]', ['a', True, [None]]),
        ('{"b1": 0.9, b2: true}', {'b1': 0.9, 'b2': True}),
        ('Heavyball()', Heavyball()),
        ('Heavyball(0.5, true)', Heavyball(0.5, True)),
        ('Heavyball(momentum=1)', Heavyball(1.0)),
        ('Wrapped(Heavyball(sizes=[1, 2]), name=a)', Wrapped(Heavyball(sizes=[1, 2]), 'a')),
        (f'{__name__}.Heavyball()', Heavyball()),
        ('test_literals.Heavyball()', Heavyball()),
        ('oneof([1, 2])', pg.oneof([1, 2])),
        ('manyof(2, [1, 2, 3], distinct=False)', pg.manyof(2, [1, 2, 3], distinct=False)),
        ('permutate([1, 2])', pg.permutate([1, 2])),
        ("floatv(1e-4, 1e-2, 'log')", pg.floatv(1e-4, 1e-2, 'log')),
        ('intv(1, 8, "log")', intv(1, 8, 'log')),
        ('floatv(0, 1, scale=linear)', pg.floatv(0.0, 1.0, 'linear')),
        ('Heavyball(floatv(0.1, 0.9))', Heavyball(pg.floatv(0.1, 0.9))),
    ],
)
def test_value(text: str, value: Any) -> None:
    parsed = parse(text, 'x')
    assert type(parsed) is type(value)
    assert pg.eq(parsed, value)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', 'cannot read'),
        ('[1,', r"a\.b: cannot read '\[1,'"),
        ('[1, 2*3]', r"cannot read '2 \* 3'"),
        ('Heavyball(0.5', 'cannot read'),
        ('Heavyball(lambda: 1)', 'cannot read'),
        ('Heavyball(*[1])', 'cannot read'),
        ('Heavyball(**{"momentum": 1})', r'cannot read \*\*'),
        ('Heavyball(momentum=1, momentum=2)', 'names an argument twice'),
        ('Heavyball(1, momentum=2)', 'momentum is given twice'),
        ('Heavyball(1, true, [], 4)', 'has 3 fields, got 4'),
        ('Heavyball(momentun=1)', 'has no field momentun. Did you mean momentum'),
        ('Heavyball(momentum=true)', r'Heavyball\.momentum: expected a number, got true'),
        ('Heavyball(nesterov=1)', 'expected true or false, got 1'),
        ('Heavyball(sizes=[1, a])', r"sizes\[1\]: expected an integer, got 'a'"),
        ('Wrapped()', 'inner'),
        ('Wrapped(Heavyball(), bad)', 'a.b: Wrapped: bad name'),
        ('Wrapped(Wrapped)', "inner: expected Heavyball, got 'Wrapped'"),
        ('Heavybal()', 'is called Heavybal. Did you mean Heavyball'),
        ('os.system("true")', 'is called os.system'),
        ('{1: 2}', 'keys must be strings'),
        ('{"_type": "function", "name": "os.system"}', 'keys must be strings'),
        ('["__tuple__"]', 'a tuple to PyGlove'),
        ('oneof(3)', 'oneof: the candidates must be a list'),
        ('oneof([])', 'oneof: 0 candidates'),
        ('oneof()', 'oneof: missing'),
        ('oneof([1], nam=2)', 'oneof: got an unexpected'),
        (
            'manyof(2, [1, 2], distict=false)',
            "manyof: got an unexpected keyword argument 'distict'",
        ),
        ('manyof(3, [1, 2])', 'manyof: 2 candidates'),
        ('permutate(2)', 'permutate: the candidates must be a list'),
        ('intv(1.5, 8)', 'intv: .*whole numbers'),
        ('intv(1, a)', 'intv: '),
        ('intv(1, 8, hints=1)', 'intv: got an unexpected'),
        ('floatv(1, 0)', 'floatv: .*greater'),
        ('floatv(0, 1, log)', 'floatv: .*positive'),
        ('floatv(0, 1, lgo)', 'floatv: .*lgo'),
        ('floatv(a, 1)', 'floatv: '),
        (f'floatv(0, {"9" * 400})', 'floatv: .*too large'),
        (f'intv({"9" * 400}, 1)', 'intv: .*too large'),
        (f'[0x{"f" * 5000}]', 'a number with too many digits'),
        (f'[+[0x{"f" * 5000}]]', 'a number with too many digits'),
        (f'Heavyball(momentum={"9" * 400})', 'momentum: expected a number'),
        ('derived(derived(x))', 'derived: expected the text of an expression'),
        ('derived(oneof([x]))', 'derived: expected the text of an expression'),
        ('derived(3)', 'derived: '),
    ],
)
def test_unreadable(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        parse(text, 'a.b')
    assert str(raised.value).startswith('a.b: ')


@pytest.mark.parametrize(
    'text',
    [
        '__import__("pathlib").Path("marker").touch()',
        'open("marker", "w")',
        '[open("marker", "w") for _ in [1]]',
        "f\"{open('marker', 'w')}\"",
        '(lambda: open("marker", "w"))()',
        'Heavyball(open("marker", "w"))',
        '{"_type": "type", "name": "antigravity.fly"}',
    ],
)
def test_nothing_is_evaluated(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        parse(text, 'x')
    assert not list(tmp_path.iterdir())


@given(st.text() | st.text('()[]{}\'",.=:*1ae- '))
def test_any_text_is_a_value_or_a_clear_error(text: str) -> None:
    try:
        parse(text, 'x')
    except UserError as error:
        assert str(error).startswith('x: ')


@pytest.mark.parametrize(
    'text',
    ['[' * 10_000, f'[{"-" * 100_000}1]', f'[{"1+" * 5_000}1]', '[' * 190 + ']' * 190, '(\0)'],
)
def test_texts_that_break_parsers(text: str) -> None:
    with contextlib.suppress(UserError):
        parse(text, 'x')


literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text().filter('_type'.__ne__), inner),
    max_leaves=5,
)


@given(literals)
def test_python_literals_are_read_back(value: Any) -> None:
    text = repr(value)
    if 'inf' not in text:
        parsed = parse(text, 'x')
        assert parsed == value
        assert not isinstance(value, float) or math.copysign(1, parsed) == math.copysign(1, value)
