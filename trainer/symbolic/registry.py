"""Registry: finds experiments by the value of `--exp`."""

import difflib
import importlib
import importlib.util
import inspect
import os
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.user_code import described, user_line

C = TypeVar('C', bound=Component)

_PACKAGE = 'search_spaces'
_ROOT = Path(__file__).parents[2]


def find(name: str, base: type[C], package: str = _PACKAGE) -> C:
    """Finds an experiment, and normalizes it.

    Args:
        name: value of --exp: a class, or a function without arguments, in a module of `package`
            (`lm.StdlibTunable`), or its full dotted path (`my.experiments.Tiny`).
        base: class of the experiment.
        package: package for short names.

    Returns:
        A deep copy in which every object occurs once.

    Raises:
        UserError: the module or the name in it is missing, one of them raises an error, or the
            name does not belong to an experiment.
    """
    attribute = name.rpartition('.')[2]
    # Attributes that every module has are not experiments.
    is_private = attribute.startswith('__')
    if '.' not in name or is_private or not all(part.isidentifier() for part in name.split('.')):
        raise UserError(f'--exp={name}: expected module.Name. {_choices(name, base, package)}')
    if package == _PACKAGE:
        for ours in ('paxtune.experiment', 'search_spaces.spmd', name.rpartition('.')[0]):
            _require_visible(ours)
    try:
        modules = [importlib.import_module(each) for each in _modules(name, package)]
        for module in modules:
            found = getattr(module, attribute, module)
            # An import of a sub-module makes it an attribute of its package.
            if not isinstance(found, ModuleType):
                return _made(found, name, base)
    except Exception as error:
        if isinstance(error, UserError) or user_line(error) is None:
            raise
        raise UserError(f'--exp={name}: {described(error)}') from error
    path = name.rpartition('.')[0]
    for module_name in _modules(f'{name}.', package):
        names = _experiments(importlib.import_module(module_name), base)
        listed = ', '.join(f'{name}.{each}' for each in names) or 'none'
        raise UserError(f'--exp={name}: this is a module: name an experiment in it: {listed}')
    if modules:
        names = [each for module in modules for each in _experiments(module, base)]
        hint = nearest(attribute, names)
        raise UserError(
            f'--exp={name}: the module {modules[0].__name__} has no {attribute}. '
            f'{hint}{" " if hint else ""}It has: {", ".join(names) or "no experiments"}.'
        )
    raise UserError(
        f'--exp={name}: there is no module {path}: not in {package}, and not on the path of '
        f'Python, which begins in {os.getcwd()}. {_choices(name, base, package)}'
    )


def _require_visible(module: str) -> None:
    """Refuses a file of the user, in the current directory, that hides one of our modules."""
    package, *path = module.split('.')
    if not path or not _ROOT.joinpath(package, *path).with_suffix('.py').is_file():
        return
    found = importlib.util.find_spec(package)
    folders = (found and found.submodule_search_locations) or ()
    if found and not any(Path(folder, *path).with_suffix('.py').is_file() for folder in folders):
        raise UserError(f'{found.origin} hides the package `{package}` of paxtune: rename it')


def module_of(name: str, package: str = _PACKAGE) -> str:
    """The module of an experiment that `find` has found."""
    attribute = name.rpartition('.')[2]
    found = _modules(name, package)
    return next(each for each in found if hasattr(importlib.import_module(each), attribute))


def _modules(name: str, package: str) -> list[str]:
    paths = (f'{package}.{name}', name)
    return [path.rpartition('.')[0] for path in paths if _exists(path.rpartition('.')[0])]


def available(base: type[Component], package: str = _PACKAGE) -> tuple[list[str], list[str]]:
    """Lists the experiments in `package` by short names, and the modules that failed, with why."""
    found, broken = [], []
    root = importlib.import_module(package)
    for info in pkgutil.walk_packages(root.__path__, f'{package}.', onerror=lambda _: None):
        try:
            module = importlib.import_module(info.name)
        # A broken module must not hide the names in others; it is reported.
        except Exception as error:
            broken.append(f'{info.name} ({type(error).__name__}: {error})')
        else:
            short = info.name.removeprefix(f'{package}.')
            found += [f'{short}.{name}' for name in _experiments(module, base)]
    return found, broken


def _experiments(module: ModuleType, base: type[Component]) -> list[str]:
    """Lists by name experiments, their classes, and functions that return one, or may."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith('_') and getattr(value, '__module__', None) == module.__name__
        if isinstance(value, base) or _makes(value, base)
    ]


def _makes(value: Any, base: type[Component]) -> bool:
    made = inspect.signature(value).return_annotation if inspect.isfunction(value) else value
    if made is inspect.Signature.empty:
        return not _required(value)
    return isinstance(made, type) and issubclass(made, base)


def _exists(module_name: str) -> bool:
    """True if the module exists; imports the packages that contain it."""
    parts = module_name.split('.')
    for i in range(1, len(parts) + 1):
        part = '.'.join(parts[:i])
        if importlib.util.find_spec(part) is None:
            return False
        if i < len(parts) and not hasattr(importlib.import_module(part), '__path__'):
            return False
    return True


def _made(found: Any, name: str, base: type[C]) -> C:
    if callable(found):
        required = _required(found)
        if required:
            raise UserError(
                f'--exp={name}: it needs values for {", ".join(required)}: name a class whose '
                'fields all have defaults, or a function without arguments'
            )
        found = found()
    if not isinstance(found, base):
        raise UserError(
            f'--exp={name}: expected a {base.__name__}, or a function that returns one; '
            f'this is a {type(found).__name__}'
        )
    return found.clone(deep=True)


def _required(made_by: Any) -> list[str]:
    if isinstance(made_by, type) and issubclass(made_by, Component):
        # PyGlove's signatures show a default where there is none.
        fields = made_by.__schema__.fields.values()
        return [str(field.key) for field in fields if not field.value.has_default]
    parameters = inspect.signature(made_by).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _near_module(path: str) -> str:
    """Returns the path of a module beside the user's files, or ours, with a similar path, or ''.

    Imports nothing.
    """
    places, found = [Path.cwd(), _ROOT], ''
    for part in path.split('.'):
        names = sorted({name for place in places for name in _module_names(place)})
        near = [part] if part in names else difflib.get_close_matches(part, names, n=1)
        if not near:
            return ''
        found = f'{found}.{near[0]}'.lstrip('.')
        places = [place / near[0] for place in places]
    return found


def _module_names(directory: Path) -> list[str]:
    """Lists the modules in a directory, and the folders that have some."""
    files = directory.glob('*.py')
    folders = (path.parent for path in directory.glob('*/*.py'))
    return [path.stem for path in (*files, *folders) if path.stem.isidentifier()]


def _choices(name: str, base: type[Component], package: str) -> str:
    found, broken = available(base, package)
    path, _, attribute = name.rpartition('.')
    near = [f'{module}.{attribute}' for module in [_near_module(path)] if path and module]
    return ' '.join(
        [
            nearest(name, [*near, *found]),
            f'{package} has: {", ".join(found) or "none"}.',
            *(f'Left out, because it cannot be imported: {module}.' for module in broken),
            'For others use the dotted path of a class or function that Python can import.',
        ]
    ).strip()
