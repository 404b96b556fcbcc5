"""Arithmetic over paths, such as `model_dims // num_heads`: parsed here, not run by Python."""

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from trainer.symbolic.errors import UserError

Path = tuple[str | int, ...]
"""Keys of a value, from the root: names, and indices of lists."""

Lookup = Callable[[Path], Any]
"""Returns the value at a path."""

_Evaluate = Callable[[Lookup], Any]

_MAX_CHARACTERS = 1000
_MAX_DEPTH = 50
MAX_BITS = 4096
_MAX_ITEMS = 10_000
_MAX_DIGITS = 300

WORDS = {'true': True, 'false': False, 'null': None}
_HELP = (
    'Expressions have numbers, strings, true, false, null, lists, paths such as stack.layers[0].x, '
    '+ - * / // % **, comparisons, in, and, or, not, `a if c else b`, and the functions {}.'
)


class Expression:
    """An expression that reads values by their paths.

    Attributes:
        text: the expression.
        paths: the paths that it may read, each once, in order.

    Example:
        >>> values = {('width',): 64, ('stack', 'layers', 0, 'heads'): 4}
        >>> expression = Expression('width // stack.layers[0].heads')
        >>> expression.paths
        [('width',), ('stack', 'layers', 0, 'heads')]
        >>> expression.evaluate(values.__getitem__)
        16
    """

    def __init__(self, text: str) -> None:
        """Parses an expression; raises UserError with the position where it cannot."""
        self.text = text.strip()
        reader = _Reader(self.text)
        self._evaluate = reader.read()
        self.paths: list[Path] = list(dict.fromkeys(reader.paths))

    def evaluate(self, lookup: Lookup) -> Any:
        """Computes the value of the expression, and looks up only the values that it needs.

        Args:
            lookup: called with a path. Its exceptions pass through.

        Raises:
            ArithmeticError: the result is not a number, or too large.
            TypeError: an operation is undefined for its operands.
            LookupError: `lookup` raised it.
        """
        return self._evaluate(lookup)


def syntax_tree(text: str) -> ast.expr:
    """Parses an expression as Python does, without warnings, which are for Python sources."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return ast.parse(text, mode='eval').body


class _Reader:
    """Turns the syntax tree of one text into functions, and rejects syntax outside the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.paths: list[Path] = []

    def read(self) -> _Evaluate:
        if len(self._text) > _MAX_CHARACTERS:
            raise UserError(
                f'{self._text[:40]!r}… has {len(self._text)} characters; an expression may have '
                f'{_MAX_CHARACTERS}'
            )
        try:
            tree = syntax_tree(self._text)
        except SyntaxError as error:
            where = f' at character {error.offset}' if error.offset else ''
            raise UserError(f'cannot read {self._text!r}{where}: {error.msg}') from None
        except (ValueError, RecursionError, MemoryError):
            raise UserError(f'cannot read {self._text[:40]!r}…') from None
        return self._compiled(tree, 0)

    def _compiled(self, node: ast.expr, depth: int) -> _Evaluate:
        if depth > _MAX_DEPTH:
            raise UserError(f'cannot read {self._text[:40]!r}…: it is nested too deeply')

        def inner(child: ast.expr) -> _Evaluate:
            return self._compiled(child, depth + 1)

        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as constant):
                return lambda lookup: constant
            case ast.Name(id=word) if word in WORDS:
                constant = WORDS[word]
                return lambda lookup: constant
            case ast.Name() | ast.Attribute() | ast.Subscript():
                path = self._path(node)
                self.paths.append(path)
                return lambda lookup: lookup(path)
            case ast.List(elts=elements):
                items = [inner(element) for element in elements]
                return lambda lookup: [item(lookup) for item in items]
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return _applied(_UNARY[type(op)], [inner(operand)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _applied(_BINARY[type(op)], [inner(left), inner(right)])
            case ast.BoolOp(op=op, values=values):
                return _short_circuit(isinstance(op, ast.And), [inner(value) for value in values])
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                type(op) in _COMPARISONS for op in ops
            ):
                compare = [_COMPARISONS[type(op)] for op in ops]
                return _chained(compare, [inner(left), *map(inner, others)])
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                holds, then, other = map(inner, (test, body, otherwise))
                return lambda lookup: then(lookup) if holds(lookup) else other(lookup)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
                function, fewest, most = _FUNCTIONS[name]
                if not fewest <= len(args) <= (most or len(args)):
                    raise UserError(f'cannot read {self._text!r}: {name} got {len(args)} values')
                return _applied(function, [inner(arg) for arg in args])
        raise self._unreadable(node)

    def _path(self, node: ast.expr) -> Path:
        match node:
            case ast.Name(id=name) if name not in WORDS:
                return (name,)
            case ast.Attribute(value=owner, attr=name):
                return (*self._path(owner), name)
            case ast.Subscript(value=owner, slice=ast.Constant(value=int() | str() as key)) if (
                not isinstance(key, bool)
            ):
                return (*self._path(owner), key)
            case ast.Subscript(
                value=owner, slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(key)))
            ):
                return (*self._path(owner), -key)
        raise self._unreadable(node)

    def _unreadable(self, node: ast.expr) -> UserError:
        part = ast.get_source_segment(self._text, node) or self._text
        if isinstance(node, ast.Call):
            part = part.partition('(')[0] + '(…)'
        line = self._text.splitlines()[node.lineno - 1]
        # Python counts bytes.
        at = len(line.encode()[: node.col_offset].decode()) + 1
        help_ = _HELP.format(', '.join(_FUNCTIONS))
        return UserError(f'cannot read {part!r} at character {at} of {self._text!r}. {help_}')


def _applied(function: Callable[..., Any], operands: list[_Evaluate]) -> _Evaluate:
    return lambda lookup: function(*(operand(lookup) for operand in operands))


def _short_circuit(is_and: bool, operands: list[_Evaluate]) -> _Evaluate:
    def evaluate(lookup: Lookup) -> Any:
        value = None
        for operand in operands:
            value = operand(lookup)
            if bool(value) != is_and:
                break
        return value

    return evaluate


def _chained(compare: list[Callable[[Any, Any], bool]], operands: list[_Evaluate]) -> _Evaluate:
    def evaluate(lookup: Lookup) -> bool:
        left = operands[0](lookup)
        for holds, operand in zip(compare, operands[1:], strict=True):
            right = operand(lookup)
            if not holds(left, right):
                return False
            left = right
        return True

    return evaluate


def _number(value: Any) -> int | float:
    if not isinstance(value, int | float):
        raise TypeError(f'expected a number, got {type(value).__name__}')
    return value


def _bounded(value: Any) -> Any:
    if isinstance(value, complex):
        raise ArithmeticError('the result is not a real number')
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError('the result is too large')
    return value


def _on_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of numbers to raise ArithmeticError for undefined values."""

    def checked(*operands: Any) -> Any:
        try:
            return _bounded(function(*map(_number, operands)))
        except ValueError as error:
            raise ArithmeticError(str(error)) from None

    return checked


def _add(left: Any, right: Any) -> Any:
    for kind in (str, list):
        if all(isinstance(operand, kind) for operand in (left, right)):
            if len(left) + len(right) > _MAX_ITEMS:
                raise OverflowError('the result is too long')
            return left + right
    return _bounded(_number(left) + _number(right))


def _power(base: Any, exponent: Any) -> Any:
    # Checks the size first: the power itself could take forever to compute.
    if isinstance(base, int) and isinstance(exponent, int):
        bits = max(abs(base).bit_length(), 1) * max(exponent, 0)
        if abs(base) > 1 and bits > 2 * MAX_BITS:
            raise OverflowError('the result is too large')
    return base**exponent


def _round(number: Any, digits: Any = None) -> Any:
    # No float has more digits, and rounding an integer to 10**-digits computes that first.
    return round(number, digits and max(-_MAX_DIGITS, min(digits, _MAX_DIGITS)))


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*operands: Any) -> Any:
        several = operands[0] if len(operands) == 1 else operands
        if not isinstance(several, list | tuple) or not several:
            raise TypeError('expected several numbers, or a list of them')
        return function(map(_number, several))

    return checked


def _length(value: Any) -> int:
    if not isinstance(value, str | list | Mapping):
        raise TypeError(f'expected a list or a string, got {type(value).__name__}')
    return len(value)


def _ordered(function: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def checked(left: Any, right: Any) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            return function(left, right)
        return function(_number(left), _number(right))

    return checked


def _contains(item: Any, container: Any) -> bool:
    if not isinstance(container, str | list | Mapping):
        raise TypeError(f'expected a list or a string, got {type(container).__name__}')
    return item in container


_UNARY: dict[type, Callable[..., Any]] = {
    ast.USub: _on_numbers(operator.neg),
    ast.UAdd: _on_numbers(operator.pos),
    ast.Not: operator.not_,
}
_BINARY: dict[type, Callable[..., Any]] = {
    ast.Add: _add,
    ast.Sub: _on_numbers(operator.sub),
    ast.Mult: _on_numbers(operator.mul),
    ast.Div: _on_numbers(operator.truediv),
    ast.FloorDiv: _on_numbers(operator.floordiv),
    ast.Mod: _on_numbers(operator.mod),
    ast.Pow: _on_numbers(_power),
}
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: _ordered(operator.lt),
    ast.LtE: _ordered(operator.le),
    ast.Gt: _ordered(operator.gt),
    ast.GtE: _ordered(operator.ge),
    ast.In: _contains,
    ast.NotIn: lambda item, container: not _contains(item, container),
}
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int | None]] = {
    'min': (_extreme(min), 1, None),
    'max': (_extreme(max), 1, None),
    'abs': (_on_numbers(abs), 1, 1),
    'round': (_on_numbers(_round), 1, 2),
    'int': (_on_numbers(int), 1, 1),
    'float': (_on_numbers(float), 1, 1),
    'len': (_length, 1, 1),
    'sqrt': (_on_numbers(math.sqrt), 1, 1),
    'log': (_on_numbers(math.log), 1, 2),
}
"""(function, minimum and maximum number of arguments) by name."""
