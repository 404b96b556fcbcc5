"""Component classes by the names that people and files write."""

import difflib
import functools
import importlib
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyglove as pg

from trainer.symbolic.component import OWN_PACKAGES, Component
from trainer.symbolic.errors import UserError

_SEARCH_SPACES = 'search_spaces'
PACKAGES = (*OWN_PACKAGES, _SEARCH_SPACES)
"""Packages whose modules may be imported because a file or a flag names a class in them."""

_CLASS = re.compile(r"^class (\w+)|serialization_name='(\w+)'", re.MULTILINE)


def nearest(name: str, legal: Iterable[str]) -> str:
    """The names in `legal` that are closest to `name`, as a sentence; empty where none is close.

    Example:
        >>> nearest('lerning_rate', ['learning_rate', 'schedule'])
        'Did you mean learning_rate?'
        >>> nearest('x', ['learning_rate'])
        ''
    """
    close = difflib.get_close_matches(name, list(legal), n=3)
    return f'Did you mean {" or ".join(close)}?' if close else ''


def loaded_classes(base: type[Component] = Component) -> Iterator[type[Component]]:
    """Every registered component class under `base`, itself included, in the order of loading."""
    for name, found in pg.JSONConvertible.registered_types():
        if isinstance(found, type) and issubclass(found, base) and name == full_name(found):
            yield found


def full_name(component_class: type[Component]) -> str:
    """The name that JSON calls a class by: `trainer.SGD`, or `module.Class` of a user's own."""
    name: str = component_class.__serialization_key__
    return name


def class_in_file(name: str) -> type[Component] | None:
    """The component class that a file calls `name`; None where there is no such class.

    A class whose module is loaded is found by its registered name. A module of our own packages
    is imported for it. Nothing else is imported, and no attribute is followed: what a file says
    can select a component class, and nothing besides.
    """
    if not _registered(name):
        package, _, rest = name.partition('.')
        if package in OWN_PACKAGES:
            for module in _modules_of(package).get(rest.partition('.')[0], ()):
                importlib.import_module(module)
        elif package == _SEARCH_SPACES:
            _import_module_of(name)
    return _registered(name)


@functools.cache
def _modules_of(package: str) -> dict[str, list[str]]:
    """The modules of a package that define classes, by the names of these classes."""
    found: dict[str, list[str]] = {}
    spec = importlib.util.find_spec(package)
    for root in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(root).rglob('[!_]*.py')):
            module = '.'.join((package, *file.relative_to(root).with_suffix('').parts))
            for class_name, other_name in _CLASS.findall(file.read_text()):
                found.setdefault(class_name or other_name, []).append(module)
    return found


def class_in_flag(name: str) -> type[Component]:
    """The component class that a person calls `name`: short (`SGD`) or full.

    Raises:
        UserError: no loaded class is called so, or several are.
    """
    if '.' in name:
        found = class_in_file(name)
        if found:
            return found
    loaded = list(loaded_classes())
    matching = [c for c in loaded if name == c.__name__ or f'.{full_name(c)}'.endswith(f'.{name}')]
    if len(matching) > 1:
        raise UserError(f'{name} may be {" or ".join(full_name(c) for c in matching)}: name it so')
    if not matching:
        hint = nearest(name, {c.__name__ for c in loaded})
        raise UserError(
            f'no component that is loaded is called {name}. '
            f'{hint or "Name it in full (module.Class), and let --exp import its module."}'
        )
    return matching[0]


def _registered(name: str) -> type[Component] | None:
    found = pg.JSONConvertible.class_from_typename(name)
    return found if isinstance(found, type) and issubclass(found, Component) else None


def _import_module_of(name: str) -> None:
    """Imports the longest part of a dotted name that is a module, from its package downwards."""
    package, *parts = name.split('.')
    if importlib.util.find_spec(package) is None:
        return
    module = importlib.import_module(package)
    for part in parts:
        inner = f'{module.__name__}.{part}'
        # Only a package has modules inside, and a `__main__` would run when imported.
        if not hasattr(module, '__path__') or not part.isidentifier() or part[0] == '_':
            return
        if importlib.util.find_spec(inner) is None:
            return
        module = importlib.import_module(inner)
