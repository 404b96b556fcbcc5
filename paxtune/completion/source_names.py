"""Names of experiments, algorithms and schedulers, from the sources alone: nothing is imported."""

import ast
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from paxtune.config.flag_names import flag_name

_EXPERIMENTS = {'Experiment', 'Tunable'}
_MOST_MODULES = 100
"""Of the user, in one directory: what is read at each press of a key is bounded."""


def experiments(prefix: str, directory: Path) -> list[str]:
    """Lists the values of --exp: names in `search_spaces`, and in modules in a directory.

    Args:
        prefix: a module in a package is read where the prefix names it, as `lab.text.`.
        directory: has the user's own modules.
    """
    package = _folder('search_spaces')
    ours = {path.stem: ast.parse(path.read_text()) for path in sorted(package.glob('*.py'))}
    classes = subclasses(ours.values(), _EXPERIMENTS)
    found = [f'{name}.{each}' for name, tree in ours.items() for each in _made_in(tree, classes)]
    parts = prefix.split('.')[:-1]
    folder = directory.joinpath(*parts[:-1])
    modules = [folder / f'{parts[-1]}.py'] if parts else sorted(folder.glob('*.py'))
    for path in modules[:_MOST_MODULES]:
        found += [
            '.'.join([*parts[:-1], path.stem, name]) for name in _experiments_in(path, classes)
        ]
    return found


def _experiments_in(path: Path, classes: set[str]) -> list[str]:
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError, ValueError):
        return []
    return _made_in(tree, subclasses([tree], classes))


def _made_in(tree: ast.Module, classes: set[str]) -> list[str]:
    """Lists the experiments of a module: their classes, and functions that return one."""
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith('_')
        if (
            node.name in classes
            if isinstance(node, ast.ClassDef)
            else _name(node.returns) in classes and not _required(node)
        )
    ]


def _required(function: ast.FunctionDef) -> bool:
    arguments = function.args
    return len(arguments.posonlyargs + arguments.args) > len(arguments.defaults)


def algorithms() -> list[str]:
    """Lists the values of --algorithm."""
    return _parts('algorithms', 'Algorithm')


def schedulers() -> list[str]:
    """Lists the values of --scheduler that are classes."""
    return _parts('schedulers', 'Scheduler')


def _parts(room: str, base: str) -> list[str]:
    """Lists the subclasses of a class that a room of paxtune exports, by their names in flags."""
    folder = _folder('paxtune') / room
    trees = {path: ast.parse(path.read_text()) for path in folder.rglob('*.py')}
    exported = {
        alias.name
        for node in trees[folder / '__init__.py'].body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return sorted(map(flag_name, (subclasses(trees.values(), {base}) - {base}) & exported))


def subclasses(trees: Iterable[ast.Module], bases: Iterable[str]) -> set[str]:
    """Collects the names of `bases`, and of all classes in the trees that derive from them.

    Example:
        >>> tree = ast.parse('class A(base.B): ...\\nclass C(A): ...\\nclass D: ...')
        >>> sorted(subclasses([tree], {'B'}))
        ['A', 'B', 'C']
    """
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    found: set[str] = set()
    new = {*bases}
    while new:
        found |= new
        new = {each.name for each in classes if found & {*map(_name, each.bases)}} - found
    return found


def _name(node: ast.expr | None) -> str:
    """The last part of a dotted name; '' of anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant) and isinstance(node.value, str):  # A quoted annotation.
        return node.value.rpartition('.')[2]
    return node.id if isinstance(node, ast.Name) else ''


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent
