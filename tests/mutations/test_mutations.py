"""The patches fit the code, and the command reports each survivor."""

import collections
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutations.catalog import ROOT, Mutation, StaleError, read

FOLDER = Path(__file__).parent
MUTATIONS = [*read(FOLDER), *read(FOLDER / 'parity')]


def test_each_patch_applies_to_the_code_of_today() -> None:
    for each in MUTATIONS:
        text = (ROOT / each.file).read_text()
        assert each.applied(text) != text


def test_each_mutation_has_a_name_and_a_check_that_is_there() -> None:
    names = collections.Counter(each.name for each in MUTATIONS)
    assert max(names.values()) == 1 and len(names) >= 40
    for each in MUTATIONS:
        file, _, name = each.test.partition('::')
        function = name.partition('[')[0]
        found = not name or re.search(
            rf'^(def )?{function}\b', (ROOT / file).read_text(), re.MULTILINE
        )
        assert found, each.test


@pytest.mark.parametrize(
    ('old', 'new', 'reason'),
    [
        ('b = 2', 'b = 3', '0 times'),
        ('1', '2', '2 times'),
        ('a = 1', 'a = 1', '1 times'),
        ('a = 1', 'a = (', 'cannot be compiled'),
    ],
)
def test_a_patch_that_does_not_fit_says_why(old: str, new: str, reason: str) -> None:
    mutation = Mutation('a test', 'module.py', old, new, test='tests')
    with pytest.raises(StaleError, match=reason):
        mutation.applied('a = 1\nc = 1\n')


PATCHES = """
[[mutation]]
name = 'noticed'
file = 'paxtune/study/transitions.py'
old = '(*record.history, added)[-_MAX_EVENTS:]'
new = '(*record.history, added)'
test = 'tests/paxtune/study/test_transitions.py::test_the_history_keeps_the_last_events'

[[mutation]]
name = 'unnoticed'
file = 'paxtune/study/transitions.py'
old = '_OUTSIDE = '
new = '_OTHER = _OUTSIDE = '
test = 'tests/paxtune/study/test_transitions.py::test_the_history_keeps_the_last_events'

[[mutation]]
name = 'stale'
file = 'paxtune/study/transitions.py'
old = 'a text that is not there'
new = ''
test = 'tests/paxtune/study/test_transitions.py::test_the_history_keeps_the_last_events'
"""


def mutated(*flags: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, '-m', 'tests.mutations', *flags]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return found.returncode, json.loads(found.stdout.partition('RESULT ')[2]), found.stdout


@pytest.mark.slow
def test_a_mutation_that_survives_or_is_stale_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / 'patches.toml').write_text(PATCHES)
    before = (ROOT / 'paxtune/study/transitions.py').read_bytes()
    code, result, shown = mutated(f'--patches={tmp_path}')
    assert (code, result['mutations'], result['caught']) == (1, 3, 1)
    assert result['missed'] == ['unnoticed', 'stale']
    assert 'SURVIVES' in shown and 'no longer applies' in shown
    assert (ROOT / 'paxtune/study/transitions.py').read_bytes() == before


@pytest.mark.slow
def test_the_simulation_notices_a_service_that_does_not_fence() -> None:
    code, result, _ = mutated('--only=a service fences')
    assert (code, result['caught']) == (0, 1)
