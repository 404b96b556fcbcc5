"""The service, its workers and people under overlapping faults: `python -m tests.simulation`."""

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.simulation.faults import NONE, Settings
from tests.simulation.scenarios import EIGHT, REGRESSIONS, SCENARIOS, Scenario
from tests.simulation.simulation import simulate, undisturbed

BRIEF = Settings(until=60.0, between=8.0)
SMALL = Scenario('small', num_trials=4, machines=2)


def printed(*flags: str, code: int = 0, **variables: str) -> str:
    """Runs the command in a process of its own, as it has to fork before JAX has threads."""
    command = [sys.executable, '-m', 'tests.simulation', *flags]
    found = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    assert found.returncode == code, found.stderr
    return found.stdout


def test_a_seed_repeats_exactly() -> None:
    first, again = (simulate(4, BRIEF, scenario=SMALL) for _ in range(2))
    assert first.trace == again.trace
    assert len(first.faults) > 3
    assert simulate(5, BRIEF, scenario=SMALL).trace != first.trace


def test_only_allowed_faults_happen() -> None:
    every = simulate(4, BRIEF, scenario=SMALL).faults
    kept = frozenset(every[:2])
    assert set(simulate(4, BRIEF, scenario=SMALL, allowed=kept).faults) <= kept


@pytest.mark.slow
@pytest.mark.parametrize('each', SCENARIOS, ids=lambda each: each.name)
def test_an_undisturbed_study_violates_nothing(each: Scenario) -> None:
    outcome = simulate(0, NONE, scenario=dataclasses.replace(each, fork=False))
    assert outcome.violations == [] and outcome.faults == []
    if each.is_reproducible:
        assert outcome.results == undisturbed(each.name)


@pytest.mark.slow
def test_a_seed_repeats_exactly_in_another_process() -> None:
    # As the names of machines, the order of sets and numbers of processes are not the same there.
    def trace(hashes: str) -> str:
        shown = printed('--trace=3', '--scenario=plain', PYTHONHASHSEED=hashes)
        return shown.partition('RESULT')[0]

    assert trace('1') == trace('2')


@pytest.mark.slow
@pytest.mark.parametrize('seed', REGRESSIONS)
def test_a_seed_that_failed_once_violates_nothing(seed: int) -> None:
    assert simulate(seed, scenario=EIGHT[seed % len(EIGHT)]).violations == []


@pytest.mark.slow
def test_seeds_in_several_processes_have_the_results_of_one_process() -> None:
    def result(*flags: str) -> Any:
        found = json.loads(printed('--first=5', '--seeds=4', *flags).partition('RESULT ')[2])
        return found['seeds'], found['kinds'], found['simulated_seconds'], found['violations']

    assert result('--jobs=2') == result()
