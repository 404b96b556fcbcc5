"""Tables of documents name tests that exist, and markers fill those on parity with Pax."""

import re
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.mutations.catalog import Mutation
from tools import parity

DOCUMENT = """
| Feature | Imp | Here | Test |
| --- | --- | --- | --- |
| `Linear` | M | a \\| b | |
| `LinearRampup`, `Cosine` | M | there | `tests/test_x.py::test_gone` |
| must, and is not | M | Not there yet. | It is being built. |
| should, without | S | there | later |
"""
TESTS = {'tests/test_x.py::test_a': 0}


def test_tables_hold_what_markers_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main(['--check']) == 0, capsys.readouterr().out


def test_markers_fill_the_rows_that_they_name() -> None:
    found = list(parity.rows(DOCUMENT))
    marked = {
        'tests/test_x.py::test_a': ['`Linear`', 'Rampup'],
        'tests/test_x.py::test_b': ['Linear', 'x'],
    }
    holders, problems = parity.held(found, marked)
    assert problems == [
        "tests/test_x.py::test_b: pax('Linear') names 2 rows",
        "tests/test_x.py::test_b: pax('x') names 0 rows",
    ]
    lines = parity.filled(DOCUMENT, holders).splitlines()
    assert lines[3] == '| `Linear` | M | a \\| b | `tests/test_x.py::test_a` |'
    assert lines[4].endswith('| there | `tests/test_x.py::test_a` |')
    assert lines[5:] == DOCUMENT.splitlines()[5:]


def test_rows_that_nothing_holds_and_tests_that_are_gone_are_reported() -> None:
    assert list(parity.faults(DOCUMENT, TESTS)) == [
        'there is no test tests/test_x.py::test_gone',
        '`Linear`: a required feature has no test',
        'should, without: it has neither a test nor a sentence',
    ]


def test_a_required_row_has_a_mutation_and_a_mutation_has_a_test_of_its_row() -> None:
    table = DOCUMENT.replace('test_gone', 'test_a').replace(
        'a \\| b | |', 'there | `tests/b.py::test_b` |'
    )
    found = list(parity.rows(table))
    fits = mutation('fits', 'tests/test_x.py::test_a[1]', 'Rampup')
    assert list(parity.unbroken(found, [fits])) == [
        '`Linear`: no mutation in tests/mutations/parity breaks it'
    ]
    other = mutation('other', 'tests/test_x.py::test_a', '`Linear`')
    unknown = mutation('unknown', 'tests/test_x.py::test_a', 'x')
    assert list(parity.unbroken(found, [fits, other, unknown, mutation('none', 'a')])) == [
        "mutation 'other': `Linear` does not name tests/test_x.py::test_a",
        "mutation 'unknown': 'x' names 0 rows",
        "mutation 'none': it names no row",
    ]


def mutation(name: str, test: str, *rows: str) -> Mutation:
    return Mutation(name, 'file.py', 'old', 'new', test=test, rows=rows)


@pytest.mark.pax(19)
def test_documents_that_are_mentioned_exist() -> None:
    # Pax's comments refer to a document on tuning that was never there.
    mentioned: dict[str, Path] = {}
    for folder in ('docs', 'examples', 'paxtune', 'search_spaces', 'tests', 'trainer'):
        for path in (ROOT / folder).rglob('*'):
            if path.suffix in ('.py', '.md'):
                names = re.findall(r'\bdocs/[\w/-]+\.md\b', path.read_text())
                mentioned |= dict.fromkeys(names, path.relative_to(ROOT))
    assert 'docs/pax-parity.md' in mentioned
    assert not {name: path for name, path in mentioned.items() if not (ROOT / name).exists()}
