"""Literals: values on the command line. They are parsed, never evaluated."""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyglove as pg

from trainer.symbolic import fields, names
from trainer.symbolic.derived import derived
from trainer.symbolic.errors import UserError, nearest, prefixed
from trainer.symbolic.expressions import MAX_BITS, WORDS, syntax_tree
from trainer.symbolic.ranges import intv

_DECISIONS: dict[str, Callable[..., Any]] = {
    'oneof': pg.oneof,
    'manyof': pg.manyof,
    'permutate': pg.permutate,
    'floatv': pg.floatv,
    'intv': intv,
    # Not a decision, but made in the same way.
    'derived': derived,
}
_TYPE = pg.JSONConvertible.TYPE_NAME_KEY
_TUPLE = pg.JSONConvertible.TUPLE_MARKER
_HELP = (
    'Values are numbers, true, false, null, words, lists, {"name": value}, and components with '
    'values for their fields, such as SGD(momentum=0.9). Any other string goes into quotes.'
)


class _UnreadableError(Exception):
    """A text, or a part of it, that is not a value."""


def parse(text: str, where: str) -> Any:
    """Parses a value.

    Args:
        text: a literal (`1e-3`, `[8, 16]`, `true`, `null`); a component with such values as fields
            (`SGD(momentum=0.9)`); a decision (`oneof([…])`, `manyof(k, […])`, `permutate([…])`,
            `floatv(low, high, 'log')`, `intv(low, high)`); a derived value
            (`derived('num_heads * 64')`). Any other text without brackets and quotes is a string
            (`gelu`, `/data/c4`).
        where: path of the value, for messages.

    Raises:
        UserError: the text is not a value, or a component is unknown or rejects its fields.

    Example:
        >>> parse('[1, 2.5, true, gelu]', 'x')
        [1, 2.5, True, 'gelu']
    """
    text = text.strip()
    try:
        return _value(_tree(text), where)
    except _UnreadableError as part:
        if text and not any(mark in text for mark in '()[]{}\'"'):
            return text
        raise UserError(f'{where}: cannot read {part}. {_HELP}') from None
    except RecursionError:
        raise UserError(f'{where}: cannot read {text[:40]!r}…: it is too deep') from None


def _tree(text: str) -> ast.expr:
    try:
        tree = syntax_tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _UnreadableError(repr(text)) from None
    for node in ast.walk(tree):
        # Python reads hexadecimal numbers of any size, but does not print them.
        number = node.value if isinstance(node, ast.Constant) else None
        if isinstance(number, int) and number.bit_length() > MAX_BITS:
            raise _UnreadableError('a number with too many digits')
    return tree


def _value(node: ast.expr, where: str) -> Any:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as constant):
            return constant
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Name(id=word):
            return WORDS.get(word, word)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            values = [_value(item, where) for item in items]
            if values[:1] == [_TUPLE]:
                raise _UnreadableError('a list that is a tuple to PyGlove')
            return values
        case ast.Dict(keys=keys, values=values):
            return dict(zip(map(_key, keys), (_value(v, where) for v in values), strict=True))
        case ast.Call(args=args, keywords=keywords):
            positional = [_value(arg, where) for arg in args]
            named = {_named(keyword): _value(keyword.value, where) for keyword in keywords}
            if len(named) < len(keywords):
                raise _UnreadableError(f'{ast.unparse(node)!r}, which names an argument twice')
            return _made(_full_name(node.func), positional, named, where)
    raise _UnreadableError(repr(ast.unparse(node)))


def _key(node: ast.expr | None) -> str:
    match node:
        # PyGlove's constructors import the module that a dict with this key names.
        case ast.Constant(value=str() as key) | ast.Name(id=key) if key != _TYPE:
            return key
    raise _UnreadableError('the mapping: its keys must be strings')


def _named(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise _UnreadableError(f'**{ast.unparse(keyword.value)}')
    return keyword.arg


def _full_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            return f'{_full_name(owner)}.{name}'
    raise _UnreadableError(repr(ast.unparse(node)))


def _made(name: str, args: Sequence[Any], named: Mapping[str, Any], where: str) -> Any:
    if name in _DECISIONS:
        return _decision(name, args, named, where)
    if name[:1].islower() and '.' not in name:
        hint = f'{nearest(name, _DECISIONS)} Decisions are {", ".join(_DECISIONS)}.'.strip()
        raise UserError(f'{where}: there is no function {name}. {hint}')
    with prefixed(where):
        component_class = names.class_in_flag(name)
    return _component(component_class, args, named, f'{where}: {name}')


def _decision(name: str, args: Sequence[Any], named: Mapping[str, Any], where: str) -> Any:
    make = _DECISIONS[name]
    try:
        bound = inspect.signature(make).bind(*args, **named)
        # pg.manyof ignores unknown arguments.
        if unknown := bound.arguments.pop('kwargs', {}):
            raise TypeError(f'got an unexpected keyword argument {next(iter(unknown))!r}')
        if not isinstance(bound.arguments.get('candidates', []), list):
            raise TypeError('the candidates must be a list')
        return make(*bound.args, **bound.kwargs)
    except (ArithmeticError, TypeError, UserError, ValueError) as error:
        raise UserError(f'{where}: {name}: {error}') from error


def _component(
    component_class: type[pg.Object], args: Sequence[Any], named: Mapping[str, Any], where: str
) -> Any:
    declared = list(inspect.signature(component_class).parameters)
    legal = ', '.join(declared) or 'none'
    values = dict(zip(declared, args, strict=False))
    if len(args) > len(declared):
        raise UserError(f'{where} has {len(declared)} fields, got {len(args)}. Its fields: {legal}')
    for field, value in named.items():
        if field not in declared:
            hint = nearest(field, declared)
            raise UserError(f'{where} has no field {field}. {hint} Its fields: {legal}')
        if field in values:
            raise UserError(f'{where}: {field} is given twice')
        values[field] = value
    schema = component_class.__schema__
    try:
        return component_class(
            **{
                field: fields.fit(schema.get_field(field).value, value, f'{where}.{field}')
                for field, value in values.items()
            }
        )
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UserError(f'{where}: {error}') from error
