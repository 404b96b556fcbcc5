"""Keys of values and of the code behind them, within this process.

Code that has not changed keeps its key, wherever it is defined again. Classes of libraries, and
objects of unknown content, count by identity. A key is text, and keeps no object alive.
"""

import hashlib
import itertools
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.symbolic.code_walk import (
    MAX_BYTES,
    ByIdentity,
    Node,
    Part,
    Walk,
    array_text,
    constant_text,
    is_array,
)
from trainer.symbolic.component import blank

_new_serial = itertools.count()
_serials = ByIdentity(lambda: next(_new_serial))


def code_key(value: Any, with_classes: bool = True) -> str:
    """Hash of the structure of a value and of the code that it runs: equal keys, equal programs.

    Args:
        value: a component, a function or a class; numbers of components do not count.
        with_classes: follows the code of the classes of components. Without, they count by
            identity.
    """
    digest, places = hashlib.sha256(), dict[int, int]()
    for node in Walk(_text, with_classes).nodes(value):
        parts = [
            (part.name, places.setdefault(id(part.value), len(places)))
            if part.text is None
            else (part.name, part.text)
            for part in node.parts or ()
        ]
        digest.update(repr((*_head(node, with_classes), parts)).encode())
    return digest.hexdigest()


def _head(node: Node, with_classes: bool) -> tuple[Any, ...]:
    value = node.value
    if isinstance(value, type):
        by_identity = node.is_library or not with_classes
        serial = _serial(value) if by_identity else None
        return 'class', value.__module__, value.__qualname__, serial
    if isinstance(value, types.FunctionType):
        return 'function', value.__module__, value.__qualname__
    return type(value).__name__, _serial(value) if node.parts is None else None


def _text(part: Part) -> str | None:
    value = part.value
    if part.kind == 'number':
        return repr(blank(value))
    if isinstance(value, types.ModuleType):
        return f'module {value.__name__}'
    if isinstance(value, np.dtype):
        return repr(value)
    if is_array(value):
        is_short = isinstance(value, np.ndarray) or value.nbytes <= MAX_BYTES
        return array_text(value) if is_short else None  # Arrays of JAX do not change.
    return constant_text(value)


def _serial(value: Any) -> Any:
    """A number that no other object of this process has had."""
    try:
        return _serials.of(value)
    except TypeError:
        if type(value) is object:
            return ''
        if isinstance(value, Mapping | list | tuple | set | frozenset):  # A large one.
            return next(_new_serial)
        try:
            return repr(value)
        except Exception:  # One of an unusual object.
            return next(_new_serial)
