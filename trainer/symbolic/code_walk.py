"""The walk over values and the code behind them, each visited once, for keys and hashes of code.

The name of a class says nothing about its code: the cell of a notebook may have been edited and run
again, a module reloaded, a method replaced. The walk therefore finds the code itself: bytecode and
constants, the bases and attributes of classes, and closures and globals that the code names.

`code_key` digests it for the caches of a process, `code_hashes` for later processes.
"""

import collections
import dataclasses
import functools
import hashlib
import importlib.util
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyglove as pg

from trainer.symbolic.bytecode import code_text, names
from trainer.symbolic.component import OWN_PACKAGES, Component, is_number
from trainer.symbolic.user_code import is_of_library

V = TypeVar('V')

SCALARS = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice)
CONTAINERS = (list, tuple, set, frozenset, dict)
MAX_BYTES = 2**20
_MAX_ITEMS = 10_000
_MAX_NESTED = 20


class Part(NamedTuple):
    """A value in another one.

    Attributes:
        name: the name of a field, a variable or an attribute.
        value: its value.
        kind: `number`, `closure`, `default`, `global`, `attribute` or `state`; '' for others.
        owner: the object that holds the variable, if it is another one than the node.
        text: a text of a constant; None for a value that the walk visits.
    """

    name: Any
    value: Any
    kind: str = ''
    owner: Any = None
    text: str | None = None


class Node(NamedTuple):
    """A value with its parts; they are None where its content is unknown, or too large."""

    value: Any
    is_library: bool
    parts: tuple[Part, ...] | None


class Walk:
    """Visits values, classes and functions, each once, and those in them.

    Args:
        text: a text of a part that is a constant; None if the walk visits the value.
        with_classes: visits the code of classes.
    """

    def __init__(self, text: Callable[[Part], str | None], with_classes: bool = True) -> None:
        self._text, self._with_classes = text, with_classes
        self._packages: set[str] = set()

    def nodes(self, *values: Any) -> Iterator[Node]:
        """Yields the nodes, in the order of their discovery: first one with the values."""
        seen: dict[int, Any] = {}  # The values keep their ids as long as they live.
        rest: collections.deque[Any] = collections.deque([list(values)])
        while rest:
            value = rest.popleft()
            if id(value) not in seen:
                seen[id(value)] = value
                yield (node := self._node(value))
                rest.extend(part.value for part in node.parts or () if part.text is None)

    def _node(self, value: Any) -> Node:
        is_library = True
        try:
            is_library = self._is_library(value)
            parts = self._parts(value, is_library)
            texts = parts and tuple(part._replace(text=self._text_of(part)) for part in parts)
            return Node(value, is_library, None if texts is None else (*texts,))
        except Exception:  # Attributes of an unusual object may raise anything.
            return Node(value, is_library, None)

    def _text_of(self, part: Part) -> str | None:
        try:
            return part.text or self._text(part)
        except Exception:
            return None

    def _is_library(self, value: Any) -> bool:
        """Returns True for a value of a library, of Python or of our packages."""
        kind = type(value)
        code = value if isinstance(value, type | types.FunctionType | types.ModuleType) else kind
        package = _package(code)
        is_component = isinstance(code, type) and issubclass(code, Component)
        if is_component and package not in OWN_PACKAGES:  # It may be installed.
            self._packages.add(package)
        return package not in self._packages and is_library(code)

    def _parts(self, value: Any, is_library: bool) -> Iterable[Part] | None:
        if isinstance(value, type):
            return _of_class(value, is_library) if self._with_classes else ()
        if isinstance(value, types.FunctionType):
            return _of_function(value, is_library, self._is_library)
        if isinstance(value, pg.Object):
            items = [(key, child, is_number(value, key)) for key, child in value.sym_items()]
            fields = [Part(key, child, 'number' if number else '') for key, child, number in items]
            return (Part('class', type(value)), *fields)
        if parts := wrapped(value):
            return itertools.starmap(Part, enumerate(parts))
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            return _of_container(value, is_library) if len(value) <= _MAX_ITEMS else None
        if type(value) is types.SimpleNamespace:
            return (Part(key, item, 'attribute') for key, item in vars(value).items())
        if is_library and not dataclasses.is_dataclass(value):
            return None
        return _of_instance(value)


def _of_function(
    function: types.FunctionType, is_library: bool, is_of_library: Callable[[Any], bool]
) -> Iterator[Part]:
    code = function.__code__
    yield Part('code', code, text=code_text(code, str(function.__doc__)))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Part(name, cell.cell_contents, 'closure')
        except ValueError:  # It has no value yet.
            yield Part(name, None, text='empty')
    for name, value in vars(function).items():
        if name == '__wrapped__' or not is_library:
            yield Part(name, value, 'attribute')
    if is_library:
        return
    defaults = itertools.chain(
        enumerate(function.__defaults__ or ()), (function.__kwdefaults__ or {}).items()
    )
    yield from (Part(name, value, 'default') for name, value in defaults)
    used, modules = names(code), set()

    def named(name: str, value: Any, owner: Any) -> Iterator[Part]:
        """Yields a value that code names; of a user's module the parts that the code names too."""
        if not isinstance(value, types.ModuleType) or is_of_library(value):
            yield Part(name, value, 'global', owner)
        elif id(value) not in modules:
            modules.add(id(value))
            for inner in used.all:
                if inner in vars(value):
                    yield from named(inner, vars(value)[inner], value)

    known = function.__globals__
    module = sys.modules.get(known.get('__name__', ''))
    owner = module if module is not None and vars(module) is known else function
    for name in used.read:
        if name in known:
            yield from named(name, known[name], owner)
    for name in used.imported:
        yield from named(name, _module(name, known.get('__package__')), owner)


def _of_class(cls: type, is_library: bool) -> Iterator[Part]:
    yield from (Part('base', base) for base in cls.__bases__)
    yield Part('type', type(cls))
    for name, attribute in list(vars(cls).items()):
        if (_is_replaced if is_library else _counts)(name, attribute):
            yield Part(name, attribute, 'attribute')
    if not is_library:
        for field in vars(cls).get('__dataclass_fields__', {}).values():
            yield Part(field.name, [field.default, field.default_factory])


def _of_container(value: Any, is_library: bool) -> Iterator[Part]:
    if type(value) not in CONTAINERS:
        yield Part('class', type(value))
    if not is_library:
        yield from _state(value)
    if isinstance(value, Mapping):
        items = value.sym_items() if isinstance(value, pg.Dict) else value.items()
        for key, item in items:
            yield Part(0, key)
            yield Part(1, item)
    elif isinstance(value, list | tuple):
        each = value.sym_values() if isinstance(value, pg.List) else value
        yield from itertools.starmap(Part, enumerate(each))
    else:
        each = sorted(value, key=lambda item: getattr(item, '__qualname__', None) or repr(item))
        yield from itertools.starmap(Part, enumerate(each))


def _of_instance(value: Any) -> Iterator[Part]:
    yield Part('class', type(value))
    kinds = [kind for kind in SCALARS if isinstance(value, kind)]  # As an `enum.IntEnum`.
    yield from (Part('value', value, text=vars(kind)['__repr__'](value)) for kind in kinds)
    yield from _state(value)


def _state(value: Any) -> Iterator[Part]:
    """The fields of a dataclass; the attributes of another object, those in slots included."""
    if dataclasses.is_dataclass(value):  # Flax adds attributes with counters.
        for field in dataclasses.fields(value):
            yield Part(field.name, getattr(value, field.name, None), 'state')
        return
    slots = itertools.chain.from_iterable(
        [own] if isinstance(own := vars(cls).get('__slots__', ()), str) else own
        for cls in type(value).__mro__
    )
    for name in slots:
        if not name.startswith('__'):
            yield Part(name, getattr(value, name, None), 'state')
    for name, each in getattr(value, '__dict__', {}).items():
        yield Part(name, each, 'state')


def constant_text(value: Any, most: int | None = None) -> str | None:
    """Returns a text of a constant, the same in any process; None for other values.

    Args:
        value: any value.
        most: the number of items that count, beside the lengths.
    """
    return _constant_text(value, [sys.maxsize if most is None else most], _MAX_NESTED)


def _constant_text(value: Any, left: list[int], nested: int) -> str | None:
    kind = type(value)
    if kind is types.CodeType:
        return code_text(value)
    if kind in SCALARS:
        left[0] -= 1
        if kind in (str, bytes) and len(value) > _MAX_ITEMS:
            content = value.encode(errors='surrogatepass') if kind is str else value
            return f'{kind.__name__} {hashlib.sha256(content).hexdigest()}'
        return f'{kind.__name__} {value!r}'
    if kind not in CONTAINERS or not nested:  # A list may hold itself.
        return None
    is_set, texts = kind in (set, frozenset), []
    if is_set and len(value) > left[0]:
        return f'{kind.__name__} {len(value)}'
    for item in value.items() if kind is dict else value:
        if left[0] <= 0:
            break
        if (text := _constant_text(item, left, nested - 1)) is None:
            return None
        texts.append(text)
    return f'{kind.__name__} {len(value)} {sorted(texts) if is_set else texts}'


def is_array(value: Any) -> bool:
    """True for arrays and scalars of NumPy and JAX. JAX, which takes seconds, is not imported."""
    is_jax = hasattr(value, 'aval') and hasattr(value, 'nbytes') and not isinstance(value, type)
    return isinstance(value, np.generic | np.ndarray) or is_jax


def array_text(value: Any) -> str | None:
    """Returns a text of an array; None for one of objects.

    Raises:
        Exception: the array was deleted, or is traced.
    """
    content = np.asarray(value)
    if content.dtype.hasobject:
        return None
    digest = hashlib.sha256(
        np.ascontiguousarray(content).reshape(-1).view(np.uint8).data
    ).hexdigest()
    return f'{content.shape} {content.dtype} {digest}'


def wrapped(value: Any) -> tuple[Any, ...]:
    """The parts of a callable object or a descriptor that wraps functions; () for others."""
    if isinstance(value, functools.partial | functools.partialmethod):
        return value.func, value.args, value.keywords
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    if isinstance(value, classmethod | staticmethod):
        return (value.__func__,)
    if isinstance(value, functools.cached_property):
        return (value.func,)
    if isinstance(value, functools.singledispatchmethod):
        return value.func, value.dispatcher
    if isinstance(value, type | types.FunctionType) or not callable(value):
        return ()
    # An object may make any other attribute on demand, a new one each time.
    found = getattr(value, '__dict__', {})
    if '__wrapped__' not in found and not hasattr(type(value), '__wrapped__'):
        return ()
    more = (part for part in found.values() if isinstance(part, types.FunctionType))
    return (value.__wrapped__, *more)  # Others are such as custom gradients.


def _counts(name: str, attribute: Any) -> bool:
    """True for an attribute of a user's class that its code may use."""
    if isinstance(attribute, types.FunctionType) or wrapped(attribute):
        return True
    is_technical = name.startswith('__') or name == '_abc_impl'
    is_descriptor = hasattr(type(attribute), '__get__') and is_library(type(attribute))
    return not is_technical and not is_descriptor


def _is_replaced(name: str, attribute: Any) -> bool:
    """True for an attribute of a library's class that a user may have set."""
    if name.startswith('__') and isinstance(attribute, SCALARS):
        return False
    while parts := wrapped(attribute):
        attribute = parts[0]
    if isinstance(attribute, types.FunctionType):
        return not is_library(attribute)
    return isinstance(attribute, bool | int | float | str)


def _module(name: str, package: str | None) -> types.ModuleType | None:
    """Returns the module that a function imports by a name; None if it has not yet."""
    try:
        return sys.modules.get(importlib.util.resolve_name(name, package))
    except ImportError:
        return None


def is_library(value: Any) -> bool:
    """True for a class, a function or a module of a library."""
    if isinstance(value, types.FunctionType):
        path = value.__code__.co_filename
        if not path.startswith('<'):
            return is_of_library(path)
    module = sys.modules.get(_module_name(value))
    if module is None or module.__name__ == '__main__':
        return False
    file = getattr(module, '__file__', None)
    return module.__name__ in sys.builtin_module_names if file is None else is_of_library(file)


def _module_name(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    name = value.__module__
    if isinstance(value, types.FunctionType):  # A wrapper has the module of another one.
        name = value.__globals__.get('__name__', name)
    return name if isinstance(name, str) else ''


def _package(value: Any) -> str:
    return _module_name(value).partition('.')[0]


class ByIdentity(Generic[V]):
    """Values of objects, by their identity. It keeps no object alive.

    Args:
        make: makes the value of an object that has none.
    """

    def __init__(self, make: Callable[[], V]) -> None:
        self._make = make
        self._known: dict[int, tuple[Any, V]] = {}

    def of(self, key: Any) -> V:
        """Returns the value of an object.

        Raises:
            TypeError: the object has no weak references.
        """
        place = id(key)
        known = self._known.get(place)
        if known is not None and known[0]() is key:
            return known[1]

        def forget(reference: Any) -> None:
            if self._known.get(place, (None,))[0] is reference:
                del self._known[place]

        self._known[place] = weakref.ref(key, forget), self._make()
        return self._known[place][1]
