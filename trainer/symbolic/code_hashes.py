"""Hashes of the users' code, by which a later process finds a class or a function that differs.

Code objects are hashed, not texts. Comments and formatting do not count, and a cell of a notebook
needs no file. A hash is valid for one version of Python, in any process. `code_key` covers more,
and is valid in one process.
"""

import collections
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyglove as pg

from trainer.symbolic.component import Component
from trainer.symbolic.names import PACKAGES
from trainer.symbolic.user_code import is_of_library

_MAX_VISITED = 5_000
_MAX_DEPTH = 3
_MAX_NESTED = 20
_DIGITS = 16

_first: dict[int, tuple[Any, str | None]] = {}
"""Lists and dicts of code, by their ids, with hashes of their first contents."""


def code_hashes(*values: Any) -> dict[str, str]:
    """Hashes the users' classes and functions in values, and the ones that their code names.

    Classes and functions of libraries are left out. So is everything that only a run can find,
    such as a function that another one returns.

    Args:
        *values: symbolic values, classes and functions.

    Returns:
        Hashes by full name, such as `my_module.Net`.
    """
    walk = _Walk()
    walk.visit_all(values)
    walk.visit_rest()
    return dict(sorted(walk.hashes.items()))


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Lists the names in `now` whose code is not in `before`; a new name alone is no difference."""
    known = {*before.values()}
    return [name for name, each in now.items() if each not in known]


class _Walk:
    """Visits values, classes and functions, each once."""

    def __init__(self) -> None:
        self.hashes: dict[str, str] = {}
        self._visited: dict[int, Any] = {}  # The values keep their ids as long as they live.
        self._packages: set[str] = set()
        self._rest: collections.deque[Any] = collections.deque()

    def visit_all(self, values: Iterable[Any]) -> None:
        self._rest.extend(values)

    def visit_rest(self) -> None:
        """Visits all values that were found, and those in them."""
        while self._rest:
            self._visit(self._rest.popleft())

    def _visit(self, value: Any) -> None:
        value = _inner(value)
        is_known = id(value) in self._visited or len(self._visited) >= _MAX_VISITED
        if is_known or _is_constant(value):
            return
        self._visited[id(value)] = value
        if isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, types.FunctionType):
            if self._is_users(value.__module__):
                self._add(value, self._digest(value))
        elif isinstance(value, functools.partial):
            self.visit_all((value.func, value.args, value.keywords))
        elif isinstance(value, pg.Object | pg.Dict | pg.List):
            self.visit_all((type(value), *(child for _, child in value.sym_items())))
        elif isinstance(value, Mapping | list | tuple):
            self.visit_all(value.values() if isinstance(value, Mapping) else value)
        elif not isinstance(value, types.ModuleType):
            self.visit_all([type(value)])

    def _visit_class(self, kind: type) -> None:
        if issubclass(kind, Component):  # A package of components may be installed.
            self._packages.add(_package(kind.__module__))
        for each in kind.__mro__:
            if (each is kind or id(each) not in self._visited) and self._is_users(each.__module__):
                self._visited[id(each)] = each
                self._add(each, self._digest_of_class(each))

    def _is_users(self, module: str | None) -> bool:
        package = _package(module or '')
        if package == '__main__':
            return True
        if package in PACKAGES or package in sys.stdlib_module_names:
            return False
        file = _file(module)
        return package in self._packages or file is None or not is_of_library(file)

    def _add(self, named: Any, digest: str) -> None:
        name = full = f'{named.__module__}.{named.__qualname__}'
        number = 1
        while self.hashes.get(name, digest) != digest:  # Several lambdas have one name.
            number += 1
            name = f'{full}#{number}'
        self.hashes[name] = digest

    def _digest_of_class(self, kind: type) -> str:
        parts = [base.__qualname__ for base in kind.__bases__]
        for name, attribute in sorted(vars(kind).items()):
            if not name.startswith('__') and (text := _constant(attribute)) is not None:
                parts += [name, text]
            for function in _functions(attribute):
                # Methods of dataclasses are generated.
                is_written = (
                    _file(kind.__module__) is None or function.__code__.co_filename[0] != '<'
                )
                if is_written and self._is_users(function.__module__):
                    parts += [name, self._digest(function)]
        return _hash(parts)

    def _digest(self, function: types.FunctionType) -> str:
        """Hashes a function with its constants, and visits the code that the function names."""
        code, parts = function.__code__, []
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for value in (*defaults, *_closed(function)):
            parts += [] if (text := _constant(value)) is None else [text]
            self.visit_all([value])
        names = {*_names(code)}
        for name in sorted(names & function.__globals__.keys()):
            parts += self._named(name, function.__globals__[name], names)
        consts = list(code.co_consts)
        if consts and isinstance(consts[0], str) and consts[0] == function.__doc__:
            consts[0] = None
        return _hash([_text_of_code(code, consts), *parts])

    def _named(self, name: str, value: Any, names: set[str], depth: int = 0) -> Iterator[str]:
        """Visits a global value of a function; yields the texts of constants."""
        if isinstance(value, types.ModuleType):
            if depth < _MAX_DEPTH and self._is_users(value.__name__):
                for inner in sorted(names & vars(value).keys()):
                    yield from self._named(inner, vars(value)[inner], names, depth + 1)
        # Others may change while a process runs.
        elif name.strip('_').isupper() and (text := _constant(value)) is not None:
            yield from (name, text)
        elif isinstance(_inner(value), type | types.FunctionType | functools.partial):
            self.visit_all([value])


def _package(module: str) -> str:
    return module.partition('.')[0]


def _file(module: str | None) -> str | None:
    """Returns the file of a module; None for a notebook, and for a text that was executed."""
    return getattr(sys.modules.get(module or ''), '__file__', None)


def _inner(value: Any) -> Any:
    """Returns the function in a method, a descriptor, or a wrapper."""
    if isinstance(value, types.MethodType | staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, functools.cached_property):
        value = value.func
    if isinstance(value, type | pg.Symbolic) or not callable(value):
        return value
    try:
        return inspect.unwrap(value)
    except Exception:  # Attributes of an unusual object may raise anything.
        return value


def _functions(attribute: Any) -> Iterator[types.FunctionType]:
    is_property = isinstance(attribute, property)
    parts = [attribute.fget, attribute.fset, attribute.fdel] if is_property else [attribute]
    yield from (found for each in parts if isinstance(found := _inner(each), types.FunctionType))


def _is_constant(value: Any, nested: int = _MAX_NESTED) -> bool:
    if type(value) in (list, tuple, frozenset, dict):
        # A list may hold itself.
        items = (*value, *value.values()) if type(value) is dict else value
        return nested > 0 and all(_is_constant(item, nested - 1) for item in items)
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def _constant(value: Any) -> str | None:
    """Returns a text of a constant; None for other values.

    A list or a dict counts with its first content in this process: a run may add results to it.
    """
    if type(value) not in (list, dict):
        return _text(value) if _is_constant(value) else None
    if id(value) not in _first:
        while len(_first) >= _MAX_VISITED:
            del _first[next(iter(_first))]
        _first[id(value)] = value, _hash([_text(value)]) if _is_constant(value) else None
    return _first[id(value)][1]


def _closed(function: types.FunctionType) -> Iterator[Any]:
    """Yields the values of outer functions that a function uses."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # It has no value yet.
            continue


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


def _text(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _text_of_code(value, value.co_consts)
    if isinstance(value, frozenset | tuple | list):
        texts = [_text(each) for each in value]
        return f'{type(value).__name__} {sorted(texts) if isinstance(value, frozenset) else texts}'
    return f'{type(value).__name__} {value!r}'


def _text_of_code(code: types.CodeType, consts: Iterable[Any]) -> str:
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    variables = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    jumps = getattr(code, 'co_exceptiontable', b'')
    return repr((code.co_code, jumps, arguments, variables, [_text(each) for each in consts]))


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256('\0'.join(parts).encode()).hexdigest()[:_DIGITS]
