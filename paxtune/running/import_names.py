"""Names by which worker processes import a function: of a module, or of the script that runs.

A worker imports the script as `multiprocessing` does: under another name than `__main__`, so that
code below the main guard is not executed again.
"""

import ast
import dis
import importlib
import inspect
import itertools
import operator
import pkgutil
import sys
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import pyglove as pg

from trainer.symbolic.errors import UserError
from trainer.symbolic.user_code import unwrapped

_MAIN, _IMPORTED_MAIN = '__main__', '__mp_main__'
_GUARD = f"if __name__ == '{_MAIN}':"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)

_importing: list[str] = []
"""The scripts that this process, a worker, is importing."""


class NotImportableError(Exception):
    """Other processes cannot import a function. The message says why."""


def is_of_script(function: Callable[..., Any]) -> bool:
    """Returns True for a function that has its name in the script or session that runs."""
    own = vars(sys.modules[_MAIN]).values()
    return _module_of(function) == _MAIN or any(each is function for each in own)


def import_name(function: Callable[..., Any]) -> str:
    """Returns the name by which another process imports a function, for `imported`.

    Raises:
        NotImportableError: there is none, or the script would search again when it is imported.
    """
    if is_of_script(function):
        return _name_in_script(function, vars(sys.modules[_MAIN]))
    module = _module_of(function)
    found = sys.modules.get(module)
    has_spec = getattr(found, '__spec__', None) is not None
    name = _name_in(function, vars(found), vars(found)) if has_spec else None
    if name is None:
        raise NotImportableError(f'{_readable_name(function)} is not at the top level of a module')
    return f'{module}:{name}'


def imported(name: str, arguments: Sequence[str] = ()) -> Callable[..., Any]:
    """Imports the function of an `import_name`.

    Args:
        name: `module:function`, or `file:function` of a script.
        arguments: of the process that runs the script, which its code may read; none for the
            function of another module.

    Raises:
        UserError: the script has no such function now, or would search again.
    """
    where, _, function = name.rpartition(':')
    if arguments:
        sys.argv[:] = arguments
    elif not where.endswith('.py'):
        found: Callable[..., Any] = pkgutil.resolve_name(name)
        return found
    module = _imported_script(where)
    try:
        found = operator.attrgetter(function)(module)
    except AttributeError as error:
        raise UserError(f'{where} has no {function} when a worker imports it: {error}') from error
    return found


def require_no_import() -> None:
    """Raises UserError while a worker imports a script: its search would begin again."""
    if _importing:
        raise UserError(
            f'{_importing[-1]} calls paxtune.tune as a worker imports it: put the call below '
            f'`{_GUARD}`'
        )


def _imported_script(where: str) -> types.ModuleType:
    """Imports a script by its file, or by the name that `python -m` got."""
    kind, name = 'path' if where.endswith('.py') else 'name', _IMPORTED_MAIN
    _importing.append(where)
    try:
        if where.endswith(f'.{_MAIN}'):  # `multiprocessing` leaves out the main part of a package.
            name = importlib.import_module(where).__name__
        else:
            spawn.prepare({f'init_main_from_{kind}': where})
    finally:
        _importing.pop()
    # The study has the classes of the script by their first names.
    for known, registered in list(pg.JSONConvertible.registered_types()):
        if known.startswith(f'{name}.'):
            first = known.replace(name, _MAIN, 1)
            pg.JSONConvertible.register(first, registered, override_existing=True)
    return sys.modules[name]


def _name_in_script(function: Callable[..., Any], main: dict[str, Any]) -> str:
    spec, file = main.get('__spec__'), main.get('__file__')
    if file is None or not Path(file).is_file():
        raise NotImportableError('processes cannot import the code of a notebook or a session')
    script = Path(file).name
    tree = ast.parse(Path(file).read_bytes())
    if _calls_outside_guard(tree, main):
        raise NotImportableError(
            f'{script} calls tune outside of `{_GUARD}`, and a process that imports it would '
            'search again'
        )
    known = {*_names_of(statement for statement in tree.body if not _is_guard(statement))}
    is_any = '*' in known  # An import of all names of a module.
    name = _name_in(function, main, main if is_any else known)
    if name is None:
        raise NotImportableError(f'{_readable_name(function)} is not at the top level of {script}')
    names = itertools.chain([name.split('.')[0]], _globals_of(function, main))
    missing = (each for each in names if each in main and each not in known)
    if not is_any and (needed := next(missing, None)) is not None:
        raise NotImportableError(f'{script} sets {needed} only below `{_GUARD}`, or in a function')
    return f'{Path(file).resolve() if spec is None else spec.name}:{name}'


def _module_of(function: object) -> str:
    return getattr(unwrapped(function), '__module__', None) or ''


def _readable_name(function: object) -> str:
    return str(getattr(function, '__qualname__', None) or repr(function))


def _name_in(function: object, names: Mapping[str, Any], known: Container[str]) -> str | None:
    """Returns the name of a function in a module, its own or a known one; None without any."""
    own = str(getattr(function, '__qualname__', ''))
    first, *rest = own.split('.')
    found = names.get(first)
    for each in rest:
        found = None if found is None else inspect.getattr_static(found, each, None)
        found = found.__func__ if isinstance(found, staticmethod) else found
    if found is function:
        return own
    same = (name for name, value in names.items() if value is function)
    return next((name for name in same if name in known), None)


def _calls_outside_guard(tree: ast.Module, main: Mapping[str, Any]) -> bool:
    """Returns True if a statement of the script that runs now is below no guard."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == '<module>' and frame.f_globals is main:
            line = frame.f_lineno
            return not any(
                _is_guard(each) and each.lineno <= line <= (each.end_lineno or line)
                for each in tree.body
            )
        frame = frame.f_back
    return False  # A thread. A worker refuses a search as well.


def _is_guard(statement: ast.stmt) -> bool:
    tested = ast.walk(statement.test) if isinstance(statement, ast.If) else ()
    return any(isinstance(each, ast.Name) and each.id == '__name__' for each in tested)


def _names_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the names that statements set at the top level; `*` for an import of all names."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((each.asname or each.name).split('.')[0] for each in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        if isinstance(node, _SCOPES):
            yield getattr(node, 'name', '')
        else:
            yield from _names_of(ast.iter_child_nodes(node))


def _globals_of(function: object, main: dict[str, Any]) -> Iterator[str]:
    """Yields the global names that a function of the script reads, also in functions it names."""
    left, seen = [unwrapped(function)], set[int]()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, type) and each.__module__ == _MAIN:
            left += [unwrapped(part) for part in vars(each).values()]
        elif isinstance(each, types.FunctionType) and each.__globals__ is main:
            for name in _global_names(each.__code__):
                if not name.startswith('__'):  # Python sets these.
                    yield name
                left.append(unwrapped(main.get(name)))


def _global_names(code: types.CodeType) -> Iterator[str]:
    for each in dis.get_instructions(code):
        if each.opname in ('LOAD_GLOBAL', 'LOAD_NAME'):
            yield str(each.argval)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _global_names(const)
