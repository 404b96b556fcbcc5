import contextlib
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.symbolic.errors import UserError
from trainer.symbolic.expressions import Expression

VALUES: dict[tuple[str | int, ...], Any] = {
    ('width',): 64,
    ('heads',): 4,
    ('rate',): 0.5,
    ('kind',): 'relu',
    ('nothing',): None,
    ('sizes',): [1, 2, 3],
    ('stack', 'layers', 0, 'heads'): 8,
    ('named', 'a b'): 5,
    ('sizes', -1): 3,
}


def evaluate(text: str) -> Any:
    return Expression(text).evaluate(VALUES.__getitem__)


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('width // heads', 16),
        ('width / heads', 16.0),
        ('width % 7 - -heads', 5),
        ('2 ** heads', 16),
        ('2 * (width + 1)', 130),
        ('rate * width', 32.0),
        ('1 < heads <= 4', True),
        ('1 < heads > 4', False),
        ('heads != 4 or width == 64', True),
        ('not (heads == 4 and width == 64)', False),
        ('width if kind == "relu" else 0', 64),
        ('kind in ["gelu", "relu"]', True),
        ('kind not in ["gelu", "relu"]', False),
        ('2 in sizes', True),
        ("kind + '_2'", 'relu_2'),
        ('sizes + [heads]', [1, 2, 3, 4]),
        ('stack.layers[0].heads', 8),
        ("named['a b']", 5),
        ('sizes[-1]', 3),
        ('min(heads, 3) + max(sizes)', 6),
        ('abs(-heads)', 4),
        ('round(width / 3)', 21),
        ('round(2 / 3, 2)', 0.67),
        ('int(7.9)', 7),
        ('float(heads)', 4.0),
        ('len(sizes) + len(kind)', 7),
        ('sqrt(width)', 8.0),
        ('log(width, 2)', 6.0),
        ('log(1)', 0.0),
        ('nothing == null and nothing == None', True),
        ('true and not False', True),
        ('[heads, "x", null]', [4, 'x', None]),
        ('  width\t', 64),
    ],
)
def test_values(text, expected):
    value = evaluate(text)
    assert value == expected
    assert type(value) is type(expected)


def test_paths_are_each_read_once_and_in_order():
    expression = Expression('stack.layers[0].heads * width + width - a["b"].__class__[-1]')
    assert expression.paths == [
        ('stack', 'layers', 0, 'heads'),
        ('width',),
        ('a', 'b', '__class__', -1),
    ]


@pytest.mark.parametrize(
    'text',
    [
        'missing if false else width',
        'true or missing',
        'false and missing',
        '2 < 1 < missing',
    ],
)
def test_only_what_is_needed_is_looked_up(text):
    assert evaluate(text) in (64, True, False)


def test_errors_of_the_lookup_are_raised():
    with pytest.raises(KeyError):
        evaluate('width + missing')


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', "cannot read ''"),
        ('width heads', 'at character 7'),
        ('width *', 'cannot read'),
        ('1 + f(2)', r"cannot read 'f\(…\)' at character 5"),
        ('width.__class__()', r"cannot read 'width.__class__\(…\)'"),
        ('[x for x in sizes]', 'cannot read'),
        ('sizes[heads]', "cannot read 'sizes\\[heads\\]' at character 1"),
        ('sizes[0:1]', 'cannot read'),
        ('sizes[true]', 'cannot read'),
        ('sizes[True]', 'cannot read'),
        ('lambda: 1', 'cannot read'),
        ('(x := 3)', "cannot read 'x := 3'"),
        ('1j', 'cannot read'),
        ("b'x'", 'cannot read'),
        ("f'{width}'", 'cannot read'),
        ('(1, 2)', 'cannot read'),
        ('{}', 'cannot read'),
        ('1 << 2', 'cannot read'),
        ('width is null', 'cannot read'),
        ('max(*sizes)', r"cannot read '\*sizes' at character 5"),
        ('round(1.5, ndigits=1)', 'cannot read'),
        ('log()', 'log got 0 values'),
        ('sqrt(1, 2)', 'sqrt got 2 values'),
        ('min()', 'min got 0 values'),
        ('true.x', "cannot read 'true'"),
        ('ε + (1, 2)', 'at character 5'),
        ('width\x00', 'cannot read'),
        ('-' * 200 + '1', 'nested too deeply'),
        ('(' * 500 + '1' + ')' * 500, 'has 1001 characters'),
        ('1 + ' * 300, 'has 1199 characters'),
    ],
)
def test_syntax_beyond_the_grammar_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        Expression(text)


@pytest.mark.parametrize(
    ('text', 'error', 'message'),
    [
        ('1 / 0', ZeroDivisionError, 'zero'),
        ('1 // (heads - 4)', ZeroDivisionError, 'zero'),
        ('sqrt(-1)', ArithmeticError, 'domain'),
        ('log(0)', ArithmeticError, 'domain'),
        ('int(1e308 * 10)', ArithmeticError, 'infinity'),
        ('(-8) ** 0.5', ArithmeticError, 'not a real number'),
        ('2 ** 10 ** 10', OverflowError, 'too large'),
        ('heads ** heads ** heads ** heads', OverflowError, 'too large'),
        ('9 ** 1000 * 9 ** 1000', OverflowError, 'too large'),
        ('10.0 ** 400', OverflowError, 'out of range|too large'),
        ('kind * 3', TypeError, 'expected a number, got str'),
        ('"%99999999d" % 1', TypeError, 'expected a number, got str'),
        ('sizes * 1000000', TypeError, 'expected a number, got list'),
        ('kind + 1', TypeError, 'expected a number'),
        ('nothing < 1', TypeError, 'expected a number'),
        ('len(width)', TypeError, 'expected a list or a string'),
        ('1 in width', TypeError, 'expected a list or a string'),
        ('max(width)', TypeError, 'several numbers'),
        ('max(kind, kind)', TypeError, 'expected a number'),
        ('-kind', TypeError, 'expected a number'),
        ('round(rate, kind)', TypeError, 'expected a number'),
    ],
)
def test_results_that_do_not_exist_or_are_too_large(text, error, message):
    with pytest.raises(error, match=message):
        evaluate(text)


def test_rounding_to_absurdly_many_digits_takes_no_time():
    assert evaluate('round(width, -9999999999)') == 0
    assert evaluate('round(rate, 9999999999)') == 0.5


def test_text_and_lists_cannot_grow_without_bound():
    with pytest.raises(OverflowError, match='too long'):
        Expression('a + a').evaluate(lambda path: 'x' * 6000)
    with pytest.raises(OverflowError, match='too long'):
        Expression('a + a').evaluate(lambda path: [0] * 6000)


_LEAVES = st.one_of(st.integers(0, 99).map(str), st.sampled_from(['width', 'heads', 'rate']))


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = ['+', '-', '*', '/', '//', '%', '<', '<=', '==', '!=', '>', 'and', 'or']
    binary = st.tuples(inner, st.sampled_from(operators), inner).map(
        lambda parts: f'({parts[0]} {parts[1]} {parts[2]})'
    )
    functions = ['-', 'not ', 'abs', 'round', 'int', 'float']
    unary = st.tuples(st.sampled_from(functions), inner).map(lambda p: f'({p[0]}({p[1]}))')
    chosen = st.tuples(inner, inner, inner).map(lambda p: f'({p[0]} if {p[1]} else {p[2]})')
    return st.one_of(binary, unary, chosen)


@settings(deadline=None)
@given(st.recursive(_LEAVES, _larger, max_leaves=12))
def test_arithmetic_is_that_of_python(text):
    names = {str(path[0]): value for path, value in VALUES.items() if len(path) == 1}
    try:
        expected = eval(text, {}, names)
    except (ArithmeticError, ValueError):
        with pytest.raises(ArithmeticError):
            evaluate(text)
        return
    value = evaluate(text)
    assert value == expected or (math.isnan(value) and math.isnan(expected))
    assert type(value) is type(expected)


@settings(deadline=None)
@given(st.text(alphabet='ab1.[]()+-*/%<>=! ,\'"ifelsnotr', max_size=30))
def test_any_text_is_read_or_refused_and_has_a_value_or_none(text):
    with contextlib.suppress(UserError):
        expression = Expression(text)
        with contextlib.suppress(ArithmeticError, LookupError, TypeError):
            expression.evaluate(VALUES.__getitem__)
