"""Keys of values and of the code behind them, within this process.

The name of a class says nothing about its code: the cell of a notebook may have been edited and run
again, a module reloaded, a method replaced. A key therefore covers the code itself: bytecode and
constants of the user's functions, the bases of classes, and closures and globals that the code
names. Code that has not changed keeps its key, wherever it is defined again.

Classes of libraries, and objects of unknown content, count by identity. A key is text, and keeps no
object alive.
"""

import collections
import dataclasses
import dis
import functools
import hashlib
import importlib.util
import itertools
import sys
import types
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyglove as pg

from trainer.symbolic.component import blank, is_number
from trainer.symbolic.user_code import is_of_library

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice, np.dtype)
_CONTAINERS = (pg.Symbolic, Mapping, list, tuple, set, frozenset, types.CodeType)
_MAX_ITEMS = 10_000
_MAX_BYTES = 2**20

_serials: dict[int, tuple[Any, int]] = {}
_new_serial = itertools.count()


def code_key(value: Any, with_classes: bool = True) -> str:
    """Hash of the structure of a value and of the code that it runs: equal keys, equal programs.

    Args:
        value: a component, a function or a class; numbers of components do not count.
        with_classes: follows the code of the classes of components. Without, they count by
            identity.
    """
    walk = _Walk(with_classes)
    walk.visit(value)
    walk.visit_rest()
    return walk.digest.hexdigest()


class _Walk:
    def __init__(self, with_classes: bool) -> None:
        self.digest = hashlib.sha256()
        self._with_classes = with_classes
        self._seen: dict[int, tuple[int, Any]] = {}  # It holds objects, so that no id is reused.
        self._classes: set[type] = set()
        self._read: set[tuple[int, str]] = set()
        self._rest: collections.deque[Any] = collections.deque()

    def visit(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._add(type(value).__name__, value)
        elif id(value) in self._seen:
            self._add('seen', self._seen[id(value)][0])
        else:
            self._seen[id(value)] = len(self._seen), value
            if isinstance(value, _CONTAINERS):
                self._visit_new(value)
            else:  # Calls of calls, and linked objects, would exceed Python's limit of recursion.
                self._rest.append(value)

    def visit_rest(self) -> None:
        """Visits the functions, classes and objects that were found, and those in them."""
        while self._rest:
            self._visit_new(self._rest.popleft())

    def _visit_new(self, value: Any) -> None:
        try:
            self._visit_parts(value)
        except Exception:  # Attributes of an unusual object may raise anything.
            self._add(_serial(value))

    def _visit_parts(self, value: Any) -> None:
        if isinstance(value, pg.Object):
            self._visit_class(type(value))
            for name, child in value.sym_items():
                self._add(name)
                self.visit(blank(child) if is_number(value, name) else child)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.CodeType):
            self._visit_code(value)
        elif isinstance(value, types.ModuleType):
            self._add('module', value.__name__)
        elif parts := _parts(value):
            self._add(type(value).__name__)
            for part in parts:
                self.visit(part)
        elif isinstance(value, Mapping | list | tuple | set | frozenset):
            self._visit_items(value)
        else:
            self._visit_instance(value)

    def _visit_items(self, value: Any) -> None:
        self._add('items', type(value).__name__, len(value))
        if len(value) > _MAX_ITEMS:
            self._add(id(value))
        elif isinstance(value, list | tuple):
            each = value.sym_values() if isinstance(value, pg.List) else value
            for item in each:
                self.visit(item)
        elif isinstance(value, Mapping):
            named = value.sym_items() if isinstance(value, pg.Dict) else value.items()
            for key, item in sorted(named, key=lambda pair: repr(pair[0])):
                self.visit(key)
                self.visit(item)
        else:
            for item in sorted(value, key=repr):
                self.visit(item)

    def _visit_class(self, cls: type) -> None:
        self._add('class', cls.__module__, cls.__qualname__)
        if not self._with_classes:
            self._add(_serial(cls))
            return
        for base in cls.__mro__:
            if base in self._classes:
                self._add(base.__qualname__)
                continue
            self._classes.add(base)
            of_library = _is_of_library(base)
            self._add('base', _serial(base) if of_library else base.__qualname__)
            for name, attribute in list(vars(base).items()):
                if (_is_replaced if of_library else _counts)(name, attribute):
                    self._add(name)
                    self.visit(attribute)

    def _visit_function(self, function: types.FunctionType) -> None:
        self._add('function', function.__module__, function.__qualname__)
        for cell in function.__closure__ or ():
            try:
                self.visit(cell.cell_contents)
            except ValueError:
                self._add('empty')
        self.visit(getattr(function, '__wrapped__', None))
        code = function.__code__
        if _is_of_library(function):
            self._add(code.co_filename, code.co_firstlineno, code.co_code)
            return
        self._visit_code(code)
        self.visit(function.__defaults__)
        self.visit(function.__kwdefaults__)
        names, known = _names(code), function.__globals__
        for name in names.read:
            if name in known:
                self._add(name)
                self._visit_named(known[name], names)
        for name in names.imported:
            self._visit_named(_module(name, function), names)

    def _visit_named(self, value: Any, names: '_Names') -> None:
        """Visits a value that code names; of a user's module the parts that the code names too."""
        if not isinstance(value, types.ModuleType) or _is_of_library(value):
            self.visit(value)
        else:
            for name in names.all:
                if name in vars(value) and (id(value), name) not in self._read:
                    self._read.add((id(value), name))
                    self._add(name)
                    self._visit_named(vars(value)[name], names)

    def _visit_code(self, code: types.CodeType) -> None:
        self._add(code.co_code, code.co_names, code.co_varnames, code.co_freevars)
        self._add(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._add(code.co_cellvars, code.co_exceptiontable)
        for constant in code.co_consts:
            self.visit(constant)

    def _visit_instance(self, value: Any) -> None:
        if isinstance(value, np.generic | np.ndarray) or _is_jax_array(value):
            self._visit_array(value)
        elif not _is_of_library(type(value)) or dataclasses.is_dataclass(value):
            self.visit(type(value))
            self.visit(_state(value))
        else:
            self._add(type(value).__qualname__, _serial(value))

    def _visit_array(self, value: Any) -> None:
        try:
            content = np.asarray(value) if value.nbytes <= _MAX_BYTES else None
        except Exception:  # A deleted or a traced one.
            content = None
        if content is None or content.dtype.hasobject:
            self._add(_serial(value))
        else:
            self._add(content.shape, content.dtype, content.tobytes())

    def _add(self, *parts: Any) -> None:
        self.digest.update(repr(parts).encode())


def _is_jax_array(value: Any) -> bool:
    # This module does not import JAX, which takes seconds.
    return hasattr(value, 'aval') and hasattr(value, 'nbytes')


def _parts(value: Any) -> tuple[Any, ...]:
    """The parts of a callable object or a descriptor that wraps functions; () for others."""
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    if isinstance(value, classmethod | staticmethod):
        return (value.__func__,)
    if isinstance(value, functools.cached_property):
        return (value.func,)
    if isinstance(value, type) or not callable(value) or not hasattr(value, '__wrapped__'):
        return ()
    more = vars(value).values() if hasattr(value, '__dict__') else ()  # Such as custom gradients.
    return (value.__wrapped__, *(part for part in more if isinstance(part, types.FunctionType)))


def _state(value: Any) -> dict[str, Any]:
    """The fields of a dataclass; the attributes of another object, those in slots included."""
    if dataclasses.is_dataclass(value):  # Flax adds attributes with counters.
        fields = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name, None) for name in fields}
    slots = itertools.chain.from_iterable(
        [own] if isinstance(own := vars(cls).get('__slots__', ()), str) else own
        for cls in type(value).__mro__
    )
    found = {name: getattr(value, name, None) for name in slots if not name.startswith('__')}
    return found | getattr(value, '__dict__', {})


class _Names(NamedTuple):
    """Names in code, of nested functions too.

    Attributes:
        read: read as globals, if they are no local variables.
        imported: modules that functions import, with a dot for each level of a relative name.
        all: attributes included.
    """

    read: tuple[str, ...]
    imported: tuple[str, ...]
    all: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> _Names:
    read, imported, every = set(), set(), set(code.co_names)
    instructions = [each for each in dis.get_instructions(code) if each.opname != 'EXTENDED_ARG']
    for at, instruction in enumerate(instructions):
        if instruction.opname in ('LOAD_GLOBAL', 'LOAD_NAME'):
            read.add(instruction.argval)
        elif instruction.opname == 'IMPORT_NAME':
            imported.add('.' * instructions[at - 2].argval + instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for mine, theirs in zip((read, imported, every), _names(constant), strict=True):
                mine.update(theirs)
    return _Names(*(tuple(sorted(each)) for each in (read, imported, every)))


def _module(name: str, function: types.FunctionType) -> types.ModuleType | None:
    """Returns the module that a function imports by a name; None if it has not yet."""
    try:
        package = function.__globals__.get('__package__')
        return sys.modules.get(importlib.util.resolve_name(name, package))
    except ImportError:
        return None


def _counts(name: str, attribute: Any) -> bool:
    """True for an attribute of a user's class that its code may use."""
    if isinstance(attribute, types.FunctionType) or _parts(attribute):
        return True
    is_technical = name.startswith('__') or name == '_abc_impl'
    return not is_technical and not hasattr(type(attribute), '__get__')


def _is_replaced(name: str, attribute: Any) -> bool:
    """True for an attribute of a library's class that a user may have set."""
    if name.startswith('__') and isinstance(attribute, _PLAIN):
        return False
    while parts := _parts(attribute):
        attribute = parts[0]
    if isinstance(attribute, types.FunctionType):
        return not _is_of_library(attribute)
    return isinstance(attribute, bool | int | float | str)


def _is_of_library(value: Any) -> bool:
    """True for a class, a function or a module of a library."""
    if isinstance(value, types.FunctionType):
        path = value.__code__.co_filename
        if not path.startswith('<'):
            return is_of_library(path)
        module: Any = sys.modules.get(value.__globals__.get('__name__', ''))
    else:
        module = value if isinstance(value, types.ModuleType) else sys.modules.get(value.__module__)
    if module is None or module.__name__ == '__main__':
        return False
    file = getattr(module, '__file__', None)
    return module.__name__ in sys.builtin_module_names if file is None else is_of_library(file)


def _serial(value: Any) -> Any:
    """A number that no other object of this process has had."""
    place = id(value)
    known = _serials.get(place)
    if known is not None and known[0]() is value:
        return known[1]

    def forget(reference: Any) -> None:
        if _serials.get(place, (None,))[0] is reference:
            del _serials[place]

    try:
        reference = weakref.ref(value, forget)
    except TypeError:
        try:
            return repr(value) if type(value) is not object else ''
        except Exception:  # One of an unusual object.
            return next(_new_serial)
    _serials[place] = reference, next(_new_serial)
    return _serials[place][1]
