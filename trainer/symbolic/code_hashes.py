"""Hashes of the users' code, by which a later process finds a class or a function that differs.

Code objects are hashed, not texts. Comments and formatting do not count, and a cell of a notebook
needs no file. A hash is valid for one version of Python, in any process.

Variables that the code assigns are no code. A list, a dict or an array counts with its first
content in this process, since a run may add results to it. Of a long one the first items count.
"""

import collections
import functools
import hashlib
import itertools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyglove as pg

from trainer.symbolic.bytecode import names
from trainer.symbolic.code_walk import (
    CONTAINERS,
    MAX_BYTES,
    ByIdentity,
    Node,
    Part,
    Walk,
    array_text,
    constant_text,
    is_array,
    wrapped,
)
from trainer.symbolic.names import PACKAGES

_MAX_VISITED = 10_000
_MAX_ITEMS = 10_000
_CONSTRUCTORS = ('__init__', '__post_init__', '__new__')
_DIGITS = 16

_first = ByIdentity[dict[tuple[str, Any], tuple[int, str]]](dict)
"""Hashes of the first contents of lists and dicts, with their ids, by owner and name."""


def code_hashes(*values: Any) -> dict[str, str]:
    """Hashes the users' classes, functions and objects in values, and the ones that code names.

    Code of libraries is left out. So is everything that only a run can find, such as a function
    that another one returns.

    Args:
        *values: symbolic values, classes and functions.

    Returns:
        Hashes by full name: `my_module.Net` of a class, `my_module.Net()` of an object.
    """
    nodes = itertools.islice(Walk(_text).nodes(*values), _MAX_VISITED)
    found: dict[str, str] = {}
    for full, digest in _Digests({id(node.value): node for node in nodes}).named():
        name, number = full, 1
        while found.get(name, digest) != digest:  # Several lambdas have one name.
            number += 1
            name = f'{full}#{number}'
        found[name] = digest
    return dict(sorted(found.items()))


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Lists the names in `now` whose code is another one; a new name alone is no difference."""
    known, old, new = {*before.values()}, _by_name(before), _by_name(now)
    found = []
    for name, digest in now.items():
        same = old.get(_shared(name), known)
        is_moved = isinstance(same, list) and sorted(same) == sorted(new[_shared(name)])
        if digest not in same or (is_moved and before.get(name) != digest):
            found.append(name)
    return found


def _by_name(hashes: Mapping[str, str]) -> Mapping[str, list[str]]:
    found = collections.defaultdict(list)
    for name, digest in hashes.items():
        found[_shared(name)].append(digest)
    return dict(found)


def _shared(name: str) -> str:
    return name.partition('#')[0]


class _Digests:
    """Digests of the nodes of a walk, by their ids."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self._nodes = nodes
        self._inner: set[int] = set()  # Methods, and parts of named nodes.
        self._texts: dict[tuple[int, str], str] = {}
        self._stored: set[str] = set()
        self._cells: set[int] = set()
        for node in nodes.values():
            if isinstance(node.value, types.FunctionType) and not node.is_library:
                self._stored.update(stored := names(node.value.__code__).stored)
                self._cells.update(id(cell) for name, cell in _cells(node) if name in stored)

    def named(self) -> Iterator[tuple[str, str]]:
        """Yields the names and the hashes of the users' classes, functions and objects."""
        for node in self._nodes.values():
            if (name := _full_name(node)) and id(node.value) not in self._inner:
                within = getattr(node.value, '__qualname__', '')
                content = [*self._content(node, within)]
                if content or isinstance(node.value, type):
                    yield name, _hash(content)

    def _content(self, node: Node, within: str) -> Iterator[str]:
        made = _constructed(type(node.value)) if _is_object(node) else None
        for part in node.parts or ():
            is_variable = made is not None and part.name not in made and part.name != 'value'
            if not (is_variable or self._is_assigned(node, part)):
                text = self._text(node, part, within)
                yield from [f'{part.name}={text}'] if text else []

    def _is_assigned(self, node: Node, part: Part) -> bool:
        if part.kind == 'closure':
            return any(name == part.name and id(cell) in self._cells for name, cell in _cells(node))
        if part.kind not in ('global', 'attribute') or part.name not in self._stored:
            return False
        return not (isinstance(part.value, type | types.FunctionType) or wrapped(part.value))

    def _text(self, node: Node, part: Part, within: str) -> str:
        if isinstance(node.value, types.FunctionType) and node.is_library and part.text:
            return ''  # The versions of libraries are no code of the user.
        text = functools.partial(self._new_text, part, within)
        if type(part.value) not in (*CONTAINERS, np.ndarray) or not part.kind:
            return text()
        try:
            known = _first.of(part.owner or node.value)
        except TypeError:
            return ''
        place = part.kind, part.name
        if place not in known or known[place][0] != id(part.value):
            known[place] = id(part.value), _hash([text()])
        return known[place][1]

    def _new_text(self, part: Part, within: str) -> str:
        if part.text is not None:
            return part.text
        node = self._nodes.get(id(part.value))
        if node is None or node.parts is None:
            return type(part.value).__qualname__
        if isinstance(node.value, type | types.FunctionType):
            name = str(node.value.__qualname__)
            if not f'{name}.'.startswith(f'{within}.') or isinstance(node.value, type):
                package = str(node.value.__module__).partition('.')[0]
                return f'{package}.{name}' if node.is_library else name
        elif _is_object(node):
            return f'{type(node.value).__qualname__}()'
        self._inner.add(id(node.value))
        if _is_generated(node):
            return ''
        place = id(node.value), within
        if place not in self._texts:
            self._texts[place] = ''  # A list may hold itself.
            self._texts[place] = _hash([type(node.value).__name__, *self._content(node, within)])
        return self._texts[place]


def _text(part: Part) -> str | None:
    value = part.value
    if isinstance(value, types.ModuleType):
        return f'module {value.__name__}'
    if is_array(value):
        return array_text(value) if value.nbytes <= MAX_BYTES else str(value.shape)
    return constant_text(value, _MAX_ITEMS)


def _full_name(node: Node) -> str:
    """The name of a user's class, function or object; '' for other nodes."""
    value = node.value
    if node.parts is None:
        return ''
    if isinstance(value, functools.partial):
        inner = value.func
        is_user = isinstance(inner, types.FunctionType)
        return f'functools.partial({inner.__module__}.{inner.__qualname__})' if is_user else ''
    named = value if isinstance(value, type | types.FunctionType) else type(value)
    is_ours = str(named.__module__).partition('.')[0] in PACKAGES
    is_made = is_ours or _is_generated(node)
    if node.is_library or is_made or not (named is value or _is_object(node)):
        return ''
    return f'{named.__module__}.{named.__qualname__}{"" if named is value else "()"}'


def _is_object(node: Node) -> bool:
    """True for an object of a user's class that has a state of its own."""
    data = (type, pg.Symbolic, types.FunctionType, Mapping, *CONTAINERS)
    return not (node.is_library or isinstance(node.value, data) or wrapped(node.value))


def _is_generated(node: Node) -> bool:
    """True for a method of a dataclass, which another release of Python writes differently."""
    if not isinstance(node.value, types.FunctionType) or node.value.__name__[:2] != '__':
        return False
    module = sys.modules.get(node.value.__module__ or '')
    return node.value.__code__.co_filename[0] == '<' and hasattr(module, '__file__')


def _cells(node: Node) -> Iterator[tuple[str, types.CellType]]:
    function = node.value
    if isinstance(function, types.FunctionType):
        yield from zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)


def _constructed(cls: type) -> set[str]:
    """The attributes that only constructors of a class set."""
    made, changed = {*getattr(cls, '__dataclass_fields__', ())}, set[str]()
    for base in cls.__mro__:
        for name, function in vars(base).items():
            while parts := wrapped(function):
                function = parts[0]
            if isinstance(function, types.FunctionType):
                own = names(function.__code__).own
                (made if name in _CONSTRUCTORS else changed).update(own)
    return made - changed


def _hash(parts: list[str]) -> str:
    return hashlib.sha256('\0'.join(parts).encode()).hexdigest()[:_DIGITS]
