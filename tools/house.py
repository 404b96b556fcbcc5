"""Checks of the structure of the three packages and the tests: `python -m tools.house --check`.

Reads the sources with `ast` and imports nothing. Imports inside functions and under
`TYPE_CHECKING` count. Without `--check` it prints the lines of each room beside its budget.
`--write` puts the floors into docs/architecture.md: a room stands above all rooms that it imports.
"""

import argparse
import ast
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[1]
PACKAGES = ('trainer', 'paxtune', 'search_spaces')

MAX_ROOT_FILES = 12
MAX_LINES = 400
MAX_TEST_LINES = 450
MAX_PUBLIC_MEMBERS = 25

BUDGETS = {
    'paxtune': 2_051,
    'paxtune/algorithms': 6_199,
    'paxtune/analysis': 2_514,
    'paxtune/config': 474,
    'paxtune/engines': 3_016,
    'paxtune/integrations': 1_069,
    'paxtune/objectives': 1_325,
    'paxtune/page': 4_162,
    'paxtune/plots': 1_991,
    'paxtune/pyglove_backend': 900,
    'paxtune/reports': 3_111,
    'paxtune/running': 3_708,
    'paxtune/scale': 430,
    'paxtune/schedulers': 2_295,
    'paxtune/search_space': 1_567,
    'paxtune/service': 3_720,
    'paxtune/simulate': 1_750,
    'paxtune/storage': 2_391,
    'paxtune/studies': 970,
    'paxtune/study': 7_408,
    'paxtune/supernet': 500,
    'paxtune/terminal': 959,
    'paxtune/vizier_service': 1_170,
    'search_spaces': 2_205,
    'trainer': 2_740,
    'trainer/checkpoints': 1_887,
    'trainer/convert': 631,
    'trainer/decoding': 706,
    'trainer/inputs': 6_262,
    'trainer/layers': 9_778,
    'trainer/learner': 2_521,
    'trainer/loop': 1_596,
    'trainer/measures': 496,
    'trainer/pretrained': 1_853,
    'trainer/program': 2_970,
    'trainer/runtime': 2_443,
    'trainer/symbolic': 3_870,
    'trainer/tasks': 951,
    'trainer/warm_start': 1_459,
}
"""The lines that each room may have. A room without a budget is a problem.

A change that exceeds a budget merges or deletes something in that room, or explains a new budget.
"""

ARCHITECTURE = 'docs/architecture.md'
FLOORS = '<!-- floors: python -m tools.house --write -->'
"""The line of the document after which the floors stand."""

CODEC = 'paxtune/storage/codec.py'
"""The one file that names the metadata keys of trials and studies."""

VIZIER_DESIGNERS = 'paxtune/algorithms/external/'
"""The folder whose files dump and load the state of Vizier's designers, in Vizier's own keys."""

_BAD_START = re.compile(r'(What|Whether|Which|Who|Whose|Whom|How)\b')

Graph: TypeAlias = Mapping[str, set[str]]


def sources(root: Path = ROOT) -> dict[str, ast.Module]:
    """Parses every file of the packages, by its path from `root`."""
    files = itertools.chain.from_iterable((root / name).rglob('*.py') for name in PACKAGES)
    return {
        str(file.relative_to(root)): ast.parse(file.read_text(), str(file))
        for file in sorted(files)
    }


def import_graph(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Maps each file to the files of the packages that it imports from."""
    return {path: set(_imports(path, tree, trees)) - {path} for path, tree in trees.items()}


def _imports(path: str, tree: ast.Module, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f'{node.module}.{alias.name}' for alias in node.names]
        for name in names:
            if (found := _file_of(name, trees)) is not None:
                yield found


def _file_of(name: str, trees: Mapping[str, ast.Module]) -> str | None:
    """The file that a dotted name, or the longest part of it, stands for."""
    parts = name.split('.')
    if parts[0] not in PACKAGES:
        return None
    for end in range(len(parts), 0, -1):
        path = '/'.join(parts[:end])
        for candidate in (f'{path}.py', f'{path}/__init__.py'):
            if candidate in trees:
                return candidate
    return None


def cycles(graph: Graph) -> list[list[str]]:
    """Finds the strongly connected components of more than one node (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def level_graph(folder: str, graph: Graph) -> dict[str, set[str]]:
    """Maps each file and folder inside `folder` to those beside it that it imports from."""
    prefix = f'{folder}/' if folder else ''
    found: dict[str, set[str]] = {}
    for path, imported in graph.items():
        if path.startswith(prefix):
            child = _child(path, prefix)
            others = {_child(other, prefix) for other in imported if other.startswith(prefix)}
            found.setdefault(child, set()).update(others - {child})
    return found


def _child(path: str, prefix: str) -> str:
    return prefix + path.removeprefix(prefix).partition('/')[0]


def folders(paths: Iterable[str]) -> list[str]:
    """All folders that hold one of these files, and the root ('')."""
    parents = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted('' if each == '.' else each for each in parents)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings of a file, those of attributes included, with their lines."""
    for node in ast.walk(tree):
        body = getattr(node, 'body', None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value.strip()


def public_members(node: ast.ClassDef) -> set[str]:
    """The names of the public methods, properties and fields that a class defines."""
    names: set[str] = set()
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(each.name)
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            names.add(each.target.id)
    return {name for name in names if not name.startswith('_')}


def problems(root: Path = ROOT) -> list[str]:
    """Lists everything that breaks a rule of the structure, a line each."""
    trees = sources(root)
    graph = import_graph(trees)
    return [
        *_crowded_roots(trees),
        *_budgets(root, trees),
        *(f'imports in a circle: {", ".join(each)}' for each in cycles(graph)),
        *_folder_cycles(graph),
        *_long_files(root, trees),
        *_long_tests(root),
        *_outdated_floors(root, graph),
        *_wide_classes(trees),
        *_metadata_keys(trees),
        *_bad_docstrings(trees),
    ]


def _crowded_roots(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    for package in PACKAGES[:2]:
        count = sum(str(Path(path).parent) == package for path in trees)
        if count > MAX_ROOT_FILES:
            yield f'{package}/: {count} files at the root; at most {MAX_ROOT_FILES}'


def _folder_cycles(graph: Graph) -> Iterator[str]:
    for folder in folders(graph):
        for each in cycles(level_graph(folder, graph)):
            if not all(path.endswith('.py') for path in each):
                yield f'folders import each other in a circle: {", ".join(each)}'


def _long_files(root: Path, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    for path in trees:
        if (length := _length(root / path)) > MAX_LINES:
            yield f'{path}: {length} lines; at most {MAX_LINES}'


def _length(file: Path) -> int:
    return len(file.read_text().splitlines())


def room_of(path: str) -> str:
    """Returns the room of a file: a package, or a folder in it with all that the folder has.

    Example:
        >>> room_of('trainer/inputs/text/words.py'), room_of('paxtune/api.py')
        ('trainer/inputs', 'paxtune')
    """
    parts = path.split('/')
    return '/'.join(parts[: min(2, len(parts) - 1)])


def room_lines(root: Path, trees: Iterable[str]) -> dict[str, int]:
    """Returns the lines of each room."""
    lines: dict[str, int] = {}
    for path in trees:
        lines[room_of(path)] = lines.get(room_of(path), 0) + _length(root / path)
    return lines


def _budgets(root: Path, trees: Iterable[str]) -> Iterator[str]:
    for room, lines in room_lines(root, trees).items():
        if lines > (budget := BUDGETS.get(room, 0)):
            yield f'{room}/: {lines} lines; its budget has {budget}'


def floors(graph: Graph) -> list[list[str]]:
    """Returns the rooms by floor, the lowest first; a room stands above all that it imports.

    The files at the root of a package are rooms of their own.
    """
    below: dict[str, set[str]] = {}
    for path, imported in graph.items():
        others = {_floor_room(other) for other in imported}
        below.setdefault(_floor_room(path), set()).update(others - {_floor_room(path)})
    levels: dict[str, int] = {}
    while len(levels) < len(below):
        ready = [room for room in below if room not in levels and below[room] <= levels.keys()]
        if not ready:
            raise ValueError(
                f'rooms import each other in a circle: {sorted(below.keys() - levels)}'
            )
        levels |= {room: 1 + max((levels[o] for o in below[room]), default=0) for room in ready}
    return [
        sorted(room for room, level in levels.items() if level == floor)
        for floor in range(1, max(levels.values(), default=0) + 1)
    ]


def _floor_room(path: str) -> str:
    is_root_file = path.count('/') == 1 and not path.endswith('__init__.py')
    return path if is_root_file and not path.startswith('search_spaces') else room_of(path)


def floors_text(graph: Graph) -> str:
    """Renders the floors as the document shows them, the highest first."""
    rows = [*enumerate(floors(graph), 1)][::-1]
    return '\n'.join(f'    {number:2}  {"  ".join(rooms)}' for number, rooms in rows)


def _outdated_floors(root: Path, graph: Graph) -> Iterator[str]:
    document = root / ARCHITECTURE
    if document.exists() and floors_text(graph) not in document.read_text():
        yield f'{ARCHITECTURE}: the floors have changed: python -m tools.house --write'


def _long_tests(root: Path) -> Iterator[str]:
    for file in sorted((root / 'tests').rglob('*.py')):
        if (length := _length(file)) > MAX_TEST_LINES:
            yield f'{file.relative_to(root)}: {length} lines; at most {MAX_TEST_LINES}'


def _wide_classes(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                count = len(public_members(node))
                if count > MAX_PUBLIC_MEMBERS:
                    yield (
                        f'{path}:{node.lineno}: {node.name} has {count} public members; '
                        f'at most {MAX_PUBLIC_MEMBERS}'
                    )


def _metadata_keys(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Finds reads and writes of Vizier's metadata items (namespace, key, value) elsewhere."""
    for path, tree in trees.items():
        is_exempt = path == CODEC or path.startswith(VIZIER_DESIGNERS)
        for node in () if is_exempt else ast.walk(tree):
            if not isinstance(node, ast.Attribute | ast.keyword):
                continue
            if (node.attr if isinstance(node, ast.Attribute) else node.arg) == 'ns':
                yield f'{path}:{node.lineno}: a metadata item is named outside {CODEC}'


def _bad_docstrings(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    for path, tree in trees.items():
        for line, text in docstrings(tree):
            if match := _BAD_START.match(text):
                yield f'{path}:{line}: a docstring begins with {match[1]!r}'


def _figures() -> Iterator[str]:
    lines = room_lines(ROOT, sources())
    for room in sorted(lines):
        yield f'{room:28} {lines[room]:6} of {BUDGETS.get(room, 0):6} lines'
    yield f'{"all":28} {sum(lines.values()):6} of {sum(BUDGETS.values()):6} lines'


def _write_floors() -> None:
    document = ROOT / ARCHITECTURE
    before, mark, after = document.read_text().partition(FLOORS)
    rest = after.lstrip('\n').partition('\n\n')[2]
    text = floors_text(import_graph(sources()))
    document.write_text(f'{before}{mark}\n\n{text}\n\n{rest}')


def main() -> int:
    """Prints the problems, or the figures; returns 1 where `--check` finds a problem."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--check', action='store_true', help='list what breaks a rule')
    flags.add_argument('--write', action='store_true', help=f'write the floors to {ARCHITECTURE}')
    args = flags.parse_args()
    if args.write:
        _write_floors()
    if not args.check:
        print(*_figures(), sep='\n')
        return 0
    found = problems()
    print(*found, sep='\n')
    print(f'{len(found)} problems' if found else 'the structure holds')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
