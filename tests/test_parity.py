"""The documents on parity with Pax name existing tests; mentioned documents exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / 'tools' / 'check_parity.py'


def check(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), '--collect', *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.sentinel
def test_parity_documents_name_existing_tests() -> None:
    done = check()
    assert done.returncode == 0, done.stdout


_DOCUMENT = """
| Feature | Here | Test |
| --- | --- | --- |
| whole | it is \\| there | `tests/test_parity.py::test_parity_reports_problems` |
| whole | replaced | It cannot happen. |
| no cell | | It cannot happen. |
| no test | there | |
| no sentence | there | later |
| short |
| no file | there | `tests/test_nothing.py::test_x` |
| no function | there | `tests/test_parity.py::test_x` |

| Feature | Imp | Here | Test |
| --- | --- | --- | --- |
| must, with a test | M | there | `tests/test_parity.py::test_parity_reports_problems` |
| must, without | M | there | It cannot happen. |
| must, and is not | M | Not there yet. | It is being built. |
| must, in part | M | half; not there yet | `tests/test_parity.py::test_parity_reports_problems` |
| should, without | S | there | It cannot happen. |
"""

_PROBLEMS = [
    "line 6: nothing stands under 'Here'",
    "line 7: nothing stands under 'Test'",
    'line 8: neither a test nor a sentence: later',
    'line 9: there is no cell under Test',
    'line 16: it must be there, and has no test: It cannot happen.',
    'there is no file tests/test_nothing.py',
    'there is no test tests/test_parity.py::test_x',
]


def test_parity_reports_problems(tmp_path: Path) -> None:
    document = tmp_path / 'parity.md'
    document.write_text(_DOCUMENT)
    done = check(document)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [f'parity.md: {problem}' for problem in _PROBLEMS]


def test_parity_lists_missing_required_features(tmp_path: Path) -> None:
    document = tmp_path / 'parity.md'
    lines = [
        line for line in _DOCUMENT.splitlines(keepends=True) if 'must' in line or '---' in line
    ]
    document.write_text(''.join(['| Feature | Imp | Here | Test |\n', *lines[1:3], *lines[4:6]]))
    done = check(document)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            'parity.md: all of its 1 tests exist',
            'parity.md: line 4: not there: must, and is not',
            'parity.md: line 5: in part there: must, in part',
        ],
    )


def test_parity_refuses_a_document_without_tests(tmp_path: Path) -> None:
    document = tmp_path / 'parity.md'
    document.write_text('Everything is there.\n')
    done = check(document)
    assert (done.returncode, done.stdout) == (1, 'parity.md: no test is named\n')


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
