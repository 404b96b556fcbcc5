"""Classes and functions of others that an algorithm names by a dotted path.

What a study says is no reason to run anything. So nothing is imported when a study is read or
shown, and when something is to be suggested, a path can select a class or a function that makes
what the algorithm asks for, and nothing besides:

- Of PyGlove, Vizier and this project, modules are imported. Any other module must be there: the
  experiment's module (`--exp`) imports it, or `--algorithm=…`, in which a person has named it, or
  a program that makes the algorithm.
- A class must be of the kind that is asked for; a function must say in its signature that it
  returns one (`-> pg.DNAGenerator`). This is looked at before anything is called, so a path to
  `os.system` is refused, and so is a method of a class (PyGlove's `from_json` runs what it reads).
- Arguments are plain data: numbers, strings, lists, dictionaries.
"""

import importlib
import importlib.util
import inspect
import random
import sys
import typing
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pyglove as pg

from trainer.symbolic import names
from trainer.symbolic.errors import UserError

_PACKAGES = ('pyglove', 'vizier', *names.PACKAGES)

# What PyGlove's own functions return that do not say so.
_UNSAID = {
    'pyglove.ext.evolution.nsga2.nsga2',
    'pyglove.ext.evolution.regularized_evolution.regularized_evolution',
}

_PLAIN = (bool, int, float, str, type(None))


def find(path: str, base: type, field: str) -> Callable[..., Any]:
    """The class or function that a path names, which makes objects of a class.

    Args:
        path: `module.Class` or `module.function`.
        base: the class of what it makes.
        field: where the path stands, for messages.

    Raises:
        UserError: there is none, its module may not be imported, or it is something else.

    Example:
        >>> find('pyglove.evolution.neat', pg.DNAGenerator, 'generator').__name__
        'neat'
        >>> find('os.system', pg.DNAGenerator, 'generator')
        Traceback (most recent call last):
        ...
        trainer.symbolic.errors.UserError: generator: os.system is no DNAGenerator, nor a function
        ...
    """
    where = f'{field}: {path}'
    parts = path.split('.')
    if len(parts) < 2 or not all(part.isidentifier() and part[:2] != '__' for part in parts):
        raise UserError(f'{field}: expected the dotted path of a class or function: {path!r}')
    found, rest = _module(parts, where)
    for part in rest:
        if not isinstance(found, ModuleType) or not hasattr(found, part):
            raise UserError(f'{where} is not there: {_name(found)} has no {part}')
        found = getattr(found, part)
    if not _makes(found, base):
        raise UserError(
            f'{where} is no {base.__name__}, nor a function that says that it returns one '
            f'(def …(…) -> {base.__name__})'
        )
    return typing.cast(Callable[..., Any], found)


def import_named(path: str) -> None:
    """Imports the module of what a person has named, such as in a flag.

    What is wrong with the path, `find` says. What goes wrong inside the module is raised as it is.
    """
    parts = path.split('.')
    legal = all(part.isidentifier() and part[:2] != '__' for part in parts)
    if legal and importlib.util.find_spec(parts[0]) is not None:
        _import(parts)


def module(path: str) -> str | None:
    """The module that a path begins with, as far as it is imported."""
    parts = path.split('.')
    prefixes = ('.'.join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next((prefix for prefix in prefixes if prefix in sys.modules), None)


def _module(parts: list[str], where: str) -> tuple[Any, list[str]]:
    """The module that a path begins with, and what follows."""
    if parts[0] in _PACKAGES:
        try:
            return _import(parts)
        except ImportError as error:
            raise UserError(f'{where} cannot be imported: {error}') from error
    known = module('.'.join(parts))
    rest = parts[known.count('.') + 1 :] if known else parts
    # What follows may be modules that are not imported.
    if known is None or (rest and not hasattr(sys.modules[known], rest[0])):
        raise UserError(
            f'{where}: its module is not imported. Let the module of --exp import it, or name it '
            'in --algorithm, or import it where the algorithm is made.'
        )
    return sys.modules[known], rest


def _import(parts: list[str]) -> tuple[Any, list[str]]:
    found = None
    with warnings.catch_warnings():
        # The libraries' own, which nobody here can do anything about.
        warnings.simplefilter('ignore')
        for end in range(1, len(parts)):
            name = '.'.join(parts[:end])
            if found is not None and not hasattr(found, '__path__'):
                return found, parts[end - 1 :]
            if importlib.util.find_spec(name) is None:
                if found is None:
                    raise ModuleNotFoundError(f'there is no module {name}')
                return found, parts[end - 1 :]
            found = importlib.import_module(name)
    return found, parts[-1:]


def _name(found: Any) -> str:
    return str(getattr(found, '__name__', type(found).__name__))


def _makes(found: Any, base: type) -> bool:
    if isinstance(found, type):
        return issubclass(found, base) and not inspect.isabstract(found)
    if not inspect.isfunction(found):
        return False
    if f'{found.__module__}.{found.__qualname__}' in _UNSAID:
        return issubclass(pg.DNAGenerator, base)
    try:
        returned = typing.get_type_hints(found).get('return')
    except (NameError, TypeError):
        return False  # Something in its signature that is not there.
    return isinstance(returned, type) and issubclass(returned, base)


def parameters(maker: Callable[..., Any]) -> Mapping[str, Any]:
    """The arguments that a class or function takes, by name."""
    return inspect.signature(maker).parameters


def plain(value: Any, path: str) -> Any:
    """A copy of plain data without PyGlove's containers.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, dict) and '_type' not in value:  # PyGlove would make an object of it.
        return {name: plain(child, f'{path}.{name}') for name, child in value.items()}
    if isinstance(value, list):
        return [plain(child, f'{path}[{i}]') for i, child in enumerate(value)]
    if type(value) not in _PLAIN:
        raise ValueError(f'{path}: expected numbers, strings, lists or dictionaries: {value!r}')
    return value


def seed_of(*parts: int | str) -> int:
    """A seed for somebody else's random numbers: the same for the same parts."""
    return random.Random('/'.join(map(str, parts))).getrandbits(31)
