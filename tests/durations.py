"""The recorded seconds of each test file, by which the slow suite is divided among machines.

`pytest --record-durations=slow -m slow` writes them to `tests/durations.json`, together with the
tests that take longer than a minute. `tests/test_durations.py` has the rules.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = Path(__file__).with_name('durations.json')
LONG_SECONDS = 60.0
"""A longer test states its reason: `@pytest.mark.slow(reason=…)`."""


def read(file: Path = FILE) -> dict[str, dict[str, float]]:
    """Returns the recorded seconds: `fast` and `slow` by file, `long` by test."""
    return json.loads(file.read_text()) if file.exists() else {'fast': {}, 'slow': {}, 'long': {}}


def write(suite: str, tests: Mapping[str, float], file: Path = FILE) -> None:
    """Replaces the records of the files of these tests; drops those of files that are gone.

    Args:
        suite: `fast` or `slow`.
        tests: seconds by test.
        file: the records.
    """
    files: dict[str, float] = {}
    for test, value in tests.items():
        files[_file(test)] = files.get(_file(test), 0.0) + value
    known = read(file)
    known[suite] |= {file: round(value, 1) for file, value in files.items()}
    known['long'] = {t: value for t, value in known['long'].items() if _file(t) not in files}
    known['long'] |= {t: round(value) for t, value in tests.items() if value > LONG_SECONDS}
    present = {
        kind: {name: each[name] for name in sorted(each) if Path(_file(name)).exists()}
        for kind, each in known.items()
    }
    file.write_text(json.dumps(present, indent=1) + '\n')


def shards(files: Sequence[str], seconds: Mapping[str, float], count: int) -> list[list[str]]:
    """Divides files among machines: the longest first, each to the machine with the least work.

    Args:
        files: in any order.
        seconds: by file; a file without a record counts as the mean.
        count: the number of machines.

    Example:
        >>> shards(['a', 'b', 'c'], {'a': 5.0, 'b': 3.0, 'c': 1.0}, 2)
        [['a'], ['b', 'c']]
    """
    mean = sum(seconds.values()) / len(seconds) if seconds else 1.0
    divided: list[list[str]] = [[] for _ in range(count)]
    work = [0.0] * count
    for file in longest_first(files, seconds):
        least = work.index(min(work))
        divided[least].append(file)
        work[least] += seconds.get(file, mean)
    return divided


def longest_first(files: Sequence[str], seconds: Mapping[str, float]) -> list[str]:
    """Sorts files by their seconds; those without a record come first."""
    return sorted(files, key=lambda file: (-seconds.get(file, float('inf')), file))


def _file(test: str) -> str:
    return test.partition('::')[0]
