"""Keeps the tests that tables of the documents name: `python -m tools.parity --write` or `--check`.

    python -m tools.parity --check                # tests exist, and no required feature lacks one
    python -m tools.parity docs/reliability.md    # runs the tests that a document names

A test marked `@pytest.mark.pax('max_inflight_steps', 12)` holds two rows of docs/pax-parity*.md:
those whose first cell is the text or the number, or alone contains it. `--write` fills their column
Test. A row without a marked test keeps its sentence, which says why. Exit codes: 0, or 1 for a
problem.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutations.catalog import Mutation, read

ROOT = Path(__file__).parents[1]
PARITY = sorted((ROOT / 'docs').glob('pax-parity*.md'))
NAMED = [*(ROOT / 'docs' / f'{name}.md' for name in ('reliability', 'distributed', 'comparison'))]

_TEST = re.compile(r'`([\w/.-]+\.py::\w+)`')
_CELL_END = re.compile(r'(?<!\\)\|')


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        line: the index of its line.
        cells: by the heading of their column.
    """

    line: int
    cells: dict[str, str]

    @property
    def name(self) -> str:
        """The first cell."""
        return next(iter(self.cells.values()))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument('documents', nargs='*', type=Path)
    for name in ('write', 'check'):
        flags.add_argument(f'--{name}', action='store_true')
    args = flags.parse_args(argv)
    if args.documents:
        return run({test for each in args.documents for test in _TEST.findall(each.read_text())})
    parity = {path: path.read_text() for path in PARITY}
    tests = functions()
    found = [row for text in parity.values() for row in rows(text)]
    holders, problems = held(found, marks(tests))
    for path, text in parity.items():
        if args.write:
            path.write_text(filled(text, holders))
        elif filled(text, holders) != text:
            problems.append(f'{path.name}: `python -m tools.parity --write` changes it')
    now = [row for path in PARITY for row in rows(path.read_text())]
    problems += unbroken(now, read(ROOT / 'tests/mutations/parity'))
    for path in [*PARITY, *NAMED, ROOT / 'SECURITY.md']:
        problems += [f'{path.name}: {each}' for each in faults(path.read_text(), tests)]
    print('\n'.join(problems) or 'each test is there')
    return 1 if problems else 0


def rows(text: str) -> Iterator[Row]:
    """Yields the rows of the tables that have a column Test."""
    headings: list[str] | None = None
    for number, line in enumerate(text.splitlines()):
        if not line.startswith('|'):
            headings = None
            continue
        cells = [cell.strip() for cell in _CELL_END.split(line)[1:-1]]
        if headings is None:
            headings = cells
        elif 'Test' in headings and not all(re.fullmatch(r':?-+:?', cell) for cell in cells):
            yield Row(number, dict(zip(headings, cells, strict=True)))


def functions() -> dict[str, ast.FunctionDef]:
    """The tests of the repository, by file and name."""
    found = {}
    for path in sorted((ROOT / 'tests').rglob('test_*.py')):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith('test_'):
                found[f'{path.relative_to(ROOT)}::{node.name}'] = node
    return found


def marks(tests: Mapping[str, ast.FunctionDef]) -> dict[str, list[str]]:
    """The rows that tests hold, as their markers name them."""
    found: dict[str, list[str]] = {}
    for test, node in tests.items():
        for each in node.decorator_list:
            if isinstance(each, ast.Call) and ast.unparse(each.func) == 'pytest.mark.pax':
                found.setdefault(test, []).extend(str(ast.literal_eval(arg)) for arg in each.args)
    return found


def held(
    found: Sequence[Row], marked: Mapping[str, Sequence[str]]
) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the tests of each row by its name, and the markers that name no row or several."""
    holders: dict[str, list[str]] = {}
    problems = []
    for test, names in marked.items():
        for name in names:
            fits = named(found, name)
            if len(fits) == 1:
                holders.setdefault(fits[0].name, []).append(test)
            else:
                problems.append(f'{test}: pax({name!r}) names {len(fits)} rows')
    return holders, problems


def named(found: Sequence[Row], name: str) -> list[Row]:
    """The rows whose first cell is the name; or those whose first cell contains it."""
    return [row for row in found if row.name == name] or [row for row in found if name in row.name]


def unbroken(found: Sequence[Row], mutations: Sequence[Mutation]) -> Iterator[str]:
    """Yields required rows that no mutation breaks, and mutations with a test of another row."""
    broken = set()
    for each in mutations:
        function = each.test.partition('[')[0]
        for name in each.rows:
            fits = named(found, name)
            if len(fits) != 1:
                yield f'mutation {each.name!r}: {name!r} names {len(fits)} rows'
            elif f'`{function}`' not in fits[0].cells['Test']:
                yield f'mutation {each.name!r}: {fits[0].name} does not name {function}'
            broken |= {row.name for row in fits}
        if not each.rows:
            yield f'mutation {each.name!r}: it names no row'
    for row in found:
        is_required = row.cells.get('Imp') == 'M' and _TEST.search(row.cells['Test'])
        if is_required and row.name not in broken:
            yield f'{row.name}: no mutation in tests/mutations/parity breaks it'


def filled(text: str, holders: Mapping[str, Sequence[str]]) -> str:
    """Returns a document with the tests of its rows; a row without tests keeps its sentence."""
    lines = text.splitlines()
    for row in rows(text):
        reason = '' if _TEST.search(row.cells['Test']) else row.cells['Test']
        tests = '<br>'.join(f'`{test}`' for test in holders.get(row.name, ()))
        cells = {**row.cells, 'Test': tests or reason}
        lines[row.line] = f'| {" | ".join(cells.values())} |'
    return '\n'.join(lines) + '\n'


def faults(text: str, tests: Mapping[str, object]) -> Iterator[str]:
    """Yields tests that are named and do not exist, and rows that nothing holds."""
    yield from (f'there is no test {test}' for test in _TEST.findall(text) if test not in tests)
    for row in rows(text):
        has_test, here = _TEST.search(row.cells['Test']), row.cells.get('Here', '')
        if not has_test and row.cells.get('Imp') == 'M' and not here.startswith('Not there'):
            yield f'{row.name}: a required feature has no test'
        elif not has_test and not row.cells['Test'].endswith('.'):
            yield f'{row.name}: it has neither a test nor a sentence'


def run(tests: set[str]) -> int:
    """Runs tests. Returns the exit code."""
    # With CI set, a skipped test fails (tests/conftest.py).
    command = [sys.executable, '-m', 'pytest', '-m', 'slow or not slow', '-q', *sorted(tests)]
    environment = {**os.environ, 'CI': 'true'}
    return 1 if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode else 0


if __name__ == '__main__':
    sys.exit(main())
