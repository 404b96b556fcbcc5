"""Texts as people, or their enemies, write them on a command line."""

import functools

from hypothesis import strategies as st

HUGE = [
    '9' * 400,
    '9' * 5000,
    '0x' + 'f' * 6000,
    '-0x' + 'f' * 500,
    '1e999',
    '-1e999',
    '1e-999',
    '9**9**9',
    '2**100000',
    '1<<10**9',
    "'a'*10**9",
    '[0]*10**9',
    '[[0]*9**9]*9**9',
    'range(10**12)',
    'list(range(10**9))',
]
CODE = [
    "__import__('os').system('true')",
    "__import__('fuzz_canary')",
    'trap()',
    'tests.fuzz.watch.trap()',
    'tests.fuzz.watch.Trap()',
    'tests.fuzz.watch.trap_functor()',
    'fuzz_canary.Thing()',
    'trainer.main.main()',
    'trainer.command.run_command(1)',
    'trainer.symbolic.serialization.json.loads(x)',
    'paxtune.studies.main([])',
    'os.system("true")',
    'eval("trap()")',
    'exec("trap()")',
    'compile("1", "x", "eval")',
    'open("marker", "w")',
    'breakpoint()',
    '(lambda: trap())()',
    'lambda: 1',
    'f"{trap()}"',
    'f"{1!r:>{width}}"',
    '[trap() for _ in [1]]',
    '{trap() for _ in [1]}',
    '{a: b for a, b in [1]}',
    '(x for x in y)',
    '(y := trap())',
    '(await x)',
    '(yield x)',
    '().__class__.__base__.__subclasses__()',
    'rate.__class__',
    'rate.__init__.__globals__',
    "''.join.__self__",
    '__builtins__',
    'oneof.__globals__',
    '_type',
    '__tuple__',
    'search.__class__.__init__',
    '*[1]',
    '**{}',
    'not x',
    'x if y else z',
    '...',
    '1j',
    "b'x'",
    'x[1:2]',
    'x[-1]',
    'x[99999999999999999999]',
    "x['_type']",
]
ATOMS = [
    '0', '1', '-1', '2', '1_000', '0.5', '1e-3', '-0.0', '1e308', 'nan', 'inf', 'NaN', '-Infinity',
    'true', 'false', 'null', 'True', 'None', "''", "'x'", '"log"', 'gelu', 'log', 'rlog', '[]',
    '{}', '()', '(1,)', '"__tuple__"', "'_type'", "'\\ud800'", "'\\x00'", "'\\N{DIGIT ONE}'", "'é'",
    '٣', 'ｘ', '9007199254740993', '18446744073709551616', 'Block()', 'Dense', 'Dense(16)',
    'Toy()', 'Search()', 'RandomSearch()', 'RegularizedEvolution()', 'LastStep()', 'MISSING_VALUE',
]  # fmt: skip
FUNCTIONS = [
    'oneof', 'manyof', 'permutate', 'floatv', 'intv', 'derived', 'Dense', 'Block', 'Search',
    'MetricReward', 'Metric', 'Limit', 'Objectives', 'RegularizedEvolution', 'RandomSearch',
    'MedianStopping', 'SGD', 'Toy', 'min', 'max', 'abs', 'round', 'int', 'float', 'len', 'sqrt',
    'log', 'trap', 'eval', 'getattr', 'tests.fuzz.watch.trap', 'trainer.Learner', 'str',
]  # fmt: skip
_ARGUMENTS = [
    'candidates', 'k', 'num_choices', 'distinct', 'sorted', 'name', 'hints', 'where', 'min_value',
    'max_value', 'scale', 'expression', 'width', 'heads', 'rate', 'self', 'cls', 'args', 'kwargs',
    'allow_partial', 'sealed', 'root_path', '_type', '__class__', 'sym_init_args',
]  # fmt: skip
_OPERATORS = ['+', '-', '*', '/', '//', '%', '**', '<<', '@', '|', ',', '==', '<', ' in ', ' and ']

_numbers = st.one_of(
    st.integers(-9, 99).map(str),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**80), 2**80).map(str),
    st.floats().map(repr),
)
_strings = st.text(max_size=8).map(repr)
_scales = st.sampled_from(
    ['', '', ", 'log'", ", 'linear'", ', rlog', ', scale=log', ', 3', ', x=1']
)


@st.composite
def expressions(draw: st.DrawFn, names: tuple[str, ...] = ()) -> str:
    """Expressions that may be values, decisions or derived values, with these names in them."""
    return draw(_expressions(names))


@functools.cache
def _expressions(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    likely = st.one_of(_numbers, st.sampled_from([*ATOMS, *names]))
    atoms = st.one_of(likely, likely, likely, _strings, st.sampled_from([*HUGE, *CODE]))
    return st.recursive(atoms, _larger, max_leaves=8)


@st.composite
def decisions(draw: st.DrawFn, names: tuple[str, ...] = ()) -> str:
    """Decisions, most of them legal ones."""
    return draw(_decisions(names))


@functools.cache
def _decisions(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    ranges = st.builds(
        '{}({}, {}{})'.format, st.sampled_from(['floatv', 'intv']), _numbers, _numbers, _scales
    )
    atoms = st.one_of(ranges, _numbers, st.sampled_from(ATOMS), expressions(names))
    return st.recursive(
        st.one_of(ranges, _choices(atoms)), lambda inner: _choices(st.one_of(inner, atoms))
    )


def _choices(candidates: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    some = st.lists(candidates, max_size=4).map(lambda items: f'[{", ".join(items)}]')
    flags = st.sampled_from(
        ['', '', ', distinct=false', ', sorted=true', ", name='x'", ', 1', ', hints=1']
    )
    count = st.sampled_from(
        ['0', '1', '2', '2', '-1', '1000000000', '1.5', '"2"', '9' * 30, 'true']
    )
    return st.one_of(
        st.builds('oneof({}{})'.format, some, flags),
        st.builds('manyof({}, {}{})'.format, count, some, flags),
        st.builds('permutate({}{})'.format, some, flags),
    )


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.lists(inner, max_size=4).map(lambda items: f'[{", ".join(items)}]')
    named = st.builds('{}={}'.format, st.sampled_from(_ARGUMENTS), inner)
    return st.one_of(
        lists,
        st.builds(
            lambda name, args: f'{name}({", ".join(args)})',
            st.sampled_from(FUNCTIONS),
            st.lists(st.one_of(inner, inner, named), max_size=3),
        ),
        st.builds('derived({!r})'.format, inner),
        st.builds('{}{}{}'.format, inner, st.sampled_from(_OPERATORS), inner),
        st.builds('({}{}{})'.format, inner, st.sampled_from(_OPERATORS), inner),
        st.builds('{}({})'.format, st.sampled_from(['-', '+', '~', 'not ']), inner),
        st.builds('{{{!r}: {}}}'.format, st.text(max_size=5), inner),
        st.builds('{}.{}'.format, inner, st.sampled_from(_ARGUMENTS)),
        st.builds('{}[{}]'.format, inner, inner),
        st.builds('({} if {} else {})'.format, inner, inner, inner),
    )


def deep() -> st.SearchStrategy[str]:
    """Texts that go deeper than parsers like."""
    pairs = [
        ('[', ']'), ('(', ')'), ('-', ''), ('not ', ''), ('1+', ''), ('x.', 'x'), ('{1:', '}'),
        ('oneof([', '])'), ('Toy(layer=', ')'), ('x[', ']'), ('1 if 1 else ', ''), ('f(', ')'),
        ('lambda: ', ''), ('"', '"'), ('x,', ''), ('2**', ''), ('derived(', ')'), ('\\', ''),
    ]  # fmt: skip
    depth = st.sampled_from([2, 30, 60, 90, 150, 199, 400, 1000, 3000, 20_000])
    return st.builds(
        lambda pair, times, middle: pair[0] * times + middle + pair[1] * times,
        st.sampled_from(pairs),
        depth,
        st.sampled_from(['1', 'x', '', "'x'"]),
    )


@st.composite
def values(draw: st.DrawFn, names: tuple[str, ...] = ()) -> str:
    """Anything that may be written for a value."""
    return draw(_values(names))


@functools.cache
def _values(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    simple = st.one_of(_numbers, _strings, st.sampled_from([*ATOMS, *names]))
    likely = st.one_of(simple, simple, expressions(names), decisions(names))
    odd = st.one_of(cut(likely), deep(), st.text(max_size=40), _garbage())
    return st.one_of(likely, likely, likely, odd)


def _garbage() -> st.SearchStrategy[str]:
    return st.text('()[]{}\'",.=:*1ae-_#\\\n\t\0 ', max_size=40)


def cut(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts with a piece cut out, doubled, or something strange put in."""
    strange = st.sampled_from(
        ['', '', '\0', '\n', '\ud800', '"', '(', ']', '=', '#', '\\', '​', '_type']
    )
    places = st.floats(0, 1)

    def change(text: str, first: float, second: float, put: str) -> str:
        left, right = (int(part * len(text)) for part in (first, second))
        return text[:left] + put + text[right:]

    return st.builds(change, texts, places, places, strange)


Fields = tuple[tuple[str, str], ...]
"""Paths, each with what its field takes: a key of `_OF_KIND`, or something else."""


@st.composite
def assignments(draw: st.DrawFn, fields: Fields, decided: bool = True) -> str:
    """`path=value`, or `path=decision` where `decided` is false, or what looks like it."""
    return draw(_assignments(fields, decided))


@functools.cache
def _assignments(fields: Fields, decided: bool) -> st.SearchStrategy[str]:
    paths = tuple(path for path, _ in fields)
    anything = _values(paths) if decided else _decisions(paths)
    fitting = st.sampled_from(fields).flatmap(
        lambda field: st.builds('{}={}'.format, st.just(field[0]), _fitting(field[1], decided))
    )
    named = st.builds('{}={}'.format, st.sampled_from(paths), anything)
    odd = st.one_of(
        st.builds('{}{}'.format, st.sampled_from(paths), st.sampled_from(_ENDINGS)),
        cut(st.sampled_from(paths)),
        st.text(max_size=10),
        st.sampled_from(paths).map(lambda path: (path + '.') * 3000),
    )
    strange = st.one_of(st.builds('{}={}'.format, odd, anything), cut(named), anything)
    return st.one_of(fitting, fitting, fitting, named, strange)


_ENDINGS = [
    '', '.x', '[0]', '[-1]', '[99999999999999999999]', '.__class__', '[x]', '[=0/2]', '._type',
    '.sym_parent', '..', '.0', '[٣]', '[²]', '[' + '9' * 5000 + ']', '\0',
]  # fmt: skip
_OF_KIND: dict[str, st.SearchStrategy[str]] = {
    'integer': st.one_of(
        st.integers(1, 16).map(str),
        st.integers(-9, 99).map(str),
        st.sampled_from(['0', '-1', '10**9', '9' * 10, '9' * 30, '9' * 1000, '2147483648', '1.0']),
    ),
    'number': _numbers,
    'boolean': st.sampled_from(['true', 'false', '1']),
    'string': st.one_of(st.text(max_size=8), _strings, st.just("'x' * 10"), st.just('a' * 10_000)),
}
_any_kind = st.one_of(*_OF_KIND.values(), st.sampled_from(ATOMS))


def _fitting(kind: str, decided: bool) -> st.SearchStrategy[str]:
    """Texts for a field that takes a kind of value."""
    value = _OF_KIND.get(kind, _any_kind)
    if kind == 'list':
        value = st.lists(_any_kind, max_size=4).map(lambda items: f'[{", ".join(items)}]')
    if decided:
        return st.one_of(value, value, st.sampled_from(['null', '{}', '[]', "derived('1 + 1')"]))
    range_ = {'integer': 'intv', 'number': 'floatv'}.get(kind)
    if range_ is None:
        return _choices(value)
    return st.one_of(
        _choices(value), st.builds(f'{range_}({{}}, {{}}{{}})'.format, value, value, _scales)
    )
