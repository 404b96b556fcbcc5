"""Lookup of component classes by their names on the command line and in files."""

import functools
import importlib
import importlib.util
import re
from pathlib import Path

import pyglove as pg

from trainer.symbolic.component import OWN_PACKAGES, Component
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.fields import loaded_classes

_SEARCH_SPACES = 'search_spaces'
PACKAGES = (*OWN_PACKAGES, _SEARCH_SPACES)
"""Packages whose modules may be imported because a file or a flag names a class in them."""

_CLASS = re.compile(r'^class (\w+)', re.MULTILINE)


def full_name(component_class: type[Component]) -> str:
    """The name of a class in JSON: `trainer.SGD`, or `module.Class` for classes of users."""
    name: str = component_class.__serialization_key__
    return name


def class_in_file(name: str) -> type[Component] | None:
    """Finds the component class with a name from a file; None if there is no such class.

    Classes of loaded modules are found by their registered name. Only modules of our own packages
    are imported, and no attribute is followed. A file can therefore select a component class, and
    do nothing else.
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
    """Maps the names of classes in a package to the modules that define them."""
    found: dict[str, list[str]] = {}
    spec = importlib.util.find_spec(package)
    for root in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(root).rglob('[!_]*.py')):
            module = '.'.join((package, *file.relative_to(root).with_suffix('').parts))
            for name in _CLASS.findall(file.read_text()):
                found.setdefault(name, []).append(module)
    return found


def class_in_flag(name: str) -> type[Component]:
    """Finds the component class with a name from the command line: short (`SGD`) or full.

    Raises:
        UserError: no loaded class, or several classes, have this name.
    """
    if '.' in name:
        found = class_in_file(name)
        if found:
            return found
    loaded = list(loaded_classes(Component))
    matching = [c for c in loaded if name == c.__name__ or f'.{full_name(c)}'.endswith(f'.{name}')]
    if len(matching) > 1:
        full_names = ' or '.join(full_name(c) for c in matching)
        raise UserError(f'{name} may be {full_names}: use the full name')
    if not matching:
        hint = nearest(name, {c.__name__ for c in loaded})
        raise UserError(
            f'no loaded component is called {name}. '
            f'{hint or "Use its full name (module.Class), and let --exp import its module."}'
        )
    return matching[0]


def _registered(name: str) -> type[Component] | None:
    found = pg.JSONConvertible.class_from_typename(name)
    return found if isinstance(found, type) and issubclass(found, Component) else None


def _import_module_of(name: str) -> None:
    """Imports the longest prefix of a dotted name that is a module, from its package downwards."""
    package, *parts = name.split('.')
    if importlib.util.find_spec(package) is None:
        return
    module = importlib.import_module(package)
    for part in parts:
        inner = f'{module.__name__}.{part}'
        # Only packages contain modules, and the import of a `__main__` would run it.
        if not hasattr(module, '__path__') or not part.isidentifier() or part[0] == '_':
            return
        if importlib.util.find_spec(inner) is None:
            return
        module = importlib.import_module(inner)
