"""Checks docs/pax-parity*.md, docs/{comparison,distributed,reliability}.md and SECURITY.md.

No cell of a table with a column Test is empty, and each test exists and passes.

    python tools/check_parity.py             # runs the tests that are named
    python tools/check_parity.py --collect   # only checks that they exist

A column Test holds tests (`path/to/test_file.py::test_name`) or a sentence that says why there are
none. A required feature (Imp M) has a test, unless Here begins with `Not there`. Such rows are
listed, and so are rows with `not there yet`. Exit codes: 0 for success, 1 for a missing or failing
test.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *sorted((ROOT / 'docs').glob('pax-parity*.md')),
    ROOT / 'docs' / 'reliability.md',
    ROOT / 'docs' / 'distributed.md',
    ROOT / 'docs' / 'comparison.md',
    ROOT / 'SECURITY.md',
]

_TEST = re.compile(r'`([\w/.-]+\.py::[^`\s]+)`')
_CELL_END = re.compile(r'(?<!\\)\|')
_ALL = ('-m', 'slow or not slow', '-p', 'no:cacheprovider')


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        line: where it stands, from 1.
        cells: by the heading of their column.
    """

    line: int
    cells: dict[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument('documents', nargs='*', type=Path, default=DOCUMENTS)
    flags.add_argument('--collect', action='store_true', help='only check that the tests exist')
    args = flags.parse_args(argv)
    texts = {document.name: document.read_text() for document in args.documents}
    everything = sorted({test for text in texts.values() for test in _TEST.findall(text)})
    gone = dict(missing(everything))
    problems = [f'{name}: {each}' for name, text in texts.items() for each in faults(text, gone)]
    for line in problems or [line for each in texts.items() for line in summary(*each)]:
        print(line)
    if problems:
        return 1
    return 0 if args.collect else run(everything)


def faults(text: str, gone: Mapping[str, str]) -> Iterator[str]:
    """Yields the problems of a document; `gone` maps missing tests to their problems."""
    named = sorted({*_TEST.findall(text)})
    yield from incomplete(rows(text.splitlines()))
    yield from dict.fromkeys(gone[test] for test in named if test in gone)
    if not named:
        yield 'no test is named'


def summary(name: str, text: str) -> Iterator[str]:
    """Summarizes a document without problems."""
    yield f'{name}: all of its {len({*_TEST.findall(text)})} tests exist'
    for row in filter(_is_must, rows(text.splitlines())):
        feature, here = next(iter(row.cells.values())), row.cells.get('Here', '')
        how = 'not' if _is_absent(row) else 'in part'
        if _is_absent(row) or 'not there yet' in here:
            yield f'{name}: line {row.line}: {how} there: {feature}'


def rows(lines: Sequence[str]) -> Iterator[Row]:
    """Yields the rows of the tables that have a column Test."""
    headings: list[str] | None = None
    for number, line in enumerate(lines, start=1):
        if not line.startswith('|'):
            headings = None
            continue
        cells = [cell.strip() for cell in _CELL_END.split(line)[1:-1]]
        if headings is None:
            headings = cells
        elif 'Test' in headings and not all(re.fullmatch(r':?-+:?', cell) for cell in cells):
            yield Row(number, dict(zip(headings, cells, strict=False)))


def incomplete(found: Iterable[Row]) -> Iterator[str]:
    """Yields the problems of rows."""
    for row in found:
        for heading, cell in row.cells.items():
            if not cell:
                yield f'line {row.line}: nothing stands under {heading!r}'
        if 'Test' not in row.cells:
            yield f'line {row.line}: there is no cell under Test'
        elif not _is_answer(row.cells['Test']):
            yield f'line {row.line}: neither a test nor a sentence: {row.cells["Test"]}'
        elif _is_must(row) and not _TEST.search(row.cells['Test']) and not _is_absent(row):
            yield f'line {row.line}: it must be there, and has no test: {row.cells["Test"]}'


def _is_must(row: Row) -> bool:
    return row.cells.get('Imp') == 'M'


def _is_absent(row: Row) -> bool:
    """Returns True if a required feature is missing."""
    return _is_must(row) and row.cells.get('Here', '').startswith('Not there')


def _is_answer(cell: str) -> bool:
    """Returns True if a cell names a test, is a sentence, or is empty."""
    return not cell or bool(_TEST.search(cell)) or (' ' in cell and cell.endswith('.'))


def missing(named: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the tests that do not exist, each with its problem."""
    file_of = {test: test.partition('::')[0] for test in named}
    for test, file in file_of.items():
        if not (ROOT / file).is_file():
            yield test, f'there is no file {file}'
    there = sorted({file for file in file_of.values() if (ROOT / file).is_file()})
    if not there:
        return
    # The options of pyproject.toml would add the doctests of other modules.
    options = 'addopts=--import-mode=importlib -pno:dash'
    done = _pytest('--collect-only', '-q', '-o', options, *there)
    if done.returncode:
        reason = f'the tests cannot be collected:\n{done.stdout}{done.stderr}'
        yield from ((test, reason) for test in named)
        return
    ids = {line for line in done.stdout.splitlines() if '::' in line}
    ids |= {test.partition('[')[0] for test in ids}
    for test, file in file_of.items():
        if file in there and test not in ids:
            yield test, f'there is no test {test}'


def run(named: Sequence[str]) -> int:
    """Runs tests and returns the exit code."""
    spread = ['-n', 'logical', '--maxprocesses=8', '--dist=loadfile']
    workers = spread if importlib.util.find_spec('xdist') else []
    # With CI set, a skipped test fails (tests/conftest.py).
    environment = {**os.environ, 'CI': 'true'}
    command = [sys.executable, '-m', 'pytest', *_ALL, '-q', *workers, *named]
    return 1 if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode else 0


def _pytest(*args: str) -> 'subprocess.CompletedProcess[str]':
    command = [sys.executable, '-m', 'pytest', *_ALL, *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == '__main__':
    sys.exit(main())
