"""Classes and functions of other libraries, by import path.

The contents of a study must not run code. Reading or showing a study imports nothing. For a
suggestion, a path can select only a class or function that makes the required object:

- Modules of PyGlove, Vizier and this project are imported. Other modules must be imported already,
  by the module of `--exp` or the program. A user may also name them in `--algorithm=…`.
- A class must have the required base; a function must declare it as its return type
  (`-> pg.DNAGenerator`). The check precedes any call. It refuses `os.system`, and methods of
  classes (PyGlove's `from_json` runs code).
- Arguments are plain data: numbers, strings, lists, dictionaries.
"""

import importlib
import importlib.util
import inspect
import random
import sys
import typing
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pyglove as pg

from trainer.symbolic import names
from trainer.symbolic.errors import UserError

_PACKAGES = ('pyglove', 'vizier', *names.PACKAGES)

# Functions of PyGlove that return a generator without declaring it.
_UNANNOTATED = {
    'pyglove.ext.evolution.nsga2.nsga2',
    'pyglove.ext.evolution.regularized_evolution.regularized_evolution',
}

_PLAIN = (bool, int, float, str, type(None))


def resolve(path: str, base: type, field: str) -> Callable[..., Any]:
    """Finds the class or function at a path that makes instances of `base`.

    Args:
        path: `module.Class` or `module.function`.
        field: field that holds the path, for messages.

    Raises:
        UserError: it does not exist, its module may not be imported, or it has another type.

    Example:
        >>> resolve('pyglove.evolution.neat', pg.DNAGenerator, 'generator').__name__
        'neat'
        >>> resolve('os.system', pg.DNAGenerator, 'generator')
        Traceback (most recent call last):
        ...
        trainer.symbolic.errors.UserError: generator: os.system is no DNAGenerator, nor a function
        ...
    """
    where = f'{field}: {path}'
    parts = path.split('.')
    if len(parts) < 2 or not _is_legal(parts):
        raise UserError(f'{field}: expected the import path of a class or function: {path!r}')
    if parts[0] in _PACKAGES:
        try:
            _import(parts)
        except ImportError as error:
            raise UserError(f'{where} cannot be imported: {error}') from error
    module = imported_module(path)
    rest = path.removeprefix(f'{module}.').split('.')
    # The rest may name modules that are not imported.
    if module is None or (parts[0] not in _PACKAGES and not hasattr(sys.modules[module], rest[0])):
        raise UserError(
            f'{where}: its module is not imported. Import it in the module of --exp, name it in '
            '--algorithm, or import it where the algorithm is created.'
        )
    found: Any = sys.modules[module]
    for part in rest:
        if not isinstance(found, ModuleType) or not hasattr(found, part):
            name = getattr(found, '__name__', type(found).__name__)
            raise UserError(f'{where} does not exist: {name} has no {part}')
        found = getattr(found, part)
    if not _creates(found, base):
        raise UserError(
            f'{where} is no {base.__name__}, nor a function with this return type '
            f'(def …(…) -> {base.__name__})'
        )
    return typing.cast(Callable[..., Any], found)


def import_named(path: str) -> None:
    """Imports the module of a path that a user wrote, such as in a flag.

    An invalid path is ignored here: `resolve` reports it. Errors inside the module are raised.
    """
    parts = path.split('.')
    if _is_legal(parts) and importlib.util.find_spec(parts[0]) is not None:
        _import(parts)


def imported_module(path: str) -> str | None:
    """Longest prefix of a path that is an imported module."""
    parts = path.split('.')
    prefixes = ('.'.join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next((prefix for prefix in prefixes if prefix in sys.modules), None)


def _is_legal(parts: Sequence[str]) -> bool:
    return all(part.isidentifier() and not part.startswith('__') for part in parts)


def _import(parts: Sequence[str]) -> None:
    """Imports the longest prefix of a path that is a module."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # The library itself warns.
        for end in range(1, len(parts)):
            name = '.'.join(parts[:end])
            if end > 1 and importlib.util.find_spec(name) is None:
                return
            if not hasattr(importlib.import_module(name), '__path__'):
                return


def _creates(found: Any, base: type) -> bool:
    if isinstance(found, type):
        return issubclass(found, base) and not inspect.isabstract(found)
    if not inspect.isfunction(found):
        return False
    if f'{found.__module__}.{found.__qualname__}' in _UNANNOTATED:
        return issubclass(pg.DNAGenerator, base)
    try:
        returned = typing.get_type_hints(found).get('return')
    except (NameError, TypeError):
        return False  # An unresolved name in its signature.
    return isinstance(returned, type) and issubclass(returned, base)


def to_plain(value: Any, path: str) -> Any:
    """Copies plain data without PyGlove's containers; raises ValueError for any other value."""
    if isinstance(value, dict) and '_type' not in value:  # PyGlove would create an object.
        return {name: to_plain(child, f'{path}.{name}') for name, child in value.items()}
    if isinstance(value, list):
        return [to_plain(child, f'{path}[{i}]') for i, child in enumerate(value)]
    if type(value) not in _PLAIN:
        raise ValueError(f'{path}: expected numbers, strings, lists or dictionaries: {value!r}')
    return value


def derive_seed(*parts: int | str) -> int:
    """Seed for the random numbers of another library, a function of the parts."""
    return random.Random('/'.join(map(str, parts))).getrandbits(31)
