"""Studies whose process is killed, by real signals, and resumed by the same command."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.factories.searches import search, told, trials_of
from tests.servers.processes import passed

pytestmark = pytest.mark.slow

_TRIALS = 16


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    directory = tmp_path_factory.mktemp('undisturbed')
    passed(search('Kinds', directory))
    trials = trials_of(directory)
    assert len(trials) == _TRIALS
    assert any(trial.stop_reason for trial in trials)
    return told(trials)


@pytest.mark.sentinel
def test_a_killed_study_ends_as_the_undisturbed_one(tmp_path: Path, undisturbed: list[Any]) -> None:
    killed = search('Kinds', tmp_path, kill='saved:1')
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    killed = search('Kinds', tmp_path, kill='suggestion:7')
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    trials = trials_of(tmp_path)
    resumed = [event for event in trials[0].history if event['event'] == 'resumed']
    assert [event['step'] for event in resumed] == [2]
    done = sum(trial.is_terminal for trial in trials)
    out = passed(search('Kinds', tmp_path))
    assert done > 0 and f'{done} of {_TRIALS} trials are done' in out
    assert told(trials_of(tmp_path)) == undisturbed


@pytest.mark.sentinel
def test_ctrl_c_saves_prints_the_command_and_exits_130(
    tmp_path: Path, undisturbed: list[Any]
) -> None:
    done = search('Kinds', tmp_path, kill='int:3')
    assert done.returncode == 130, done.stderr
    assert (
        'To resume:\n  python -m paxtune.search --exp=tests.factories.tunables.Kinds' in done.stdout
    )
    out = passed(search('Kinds', tmp_path))
    assert 'trial 1: resumed from step 3' in out
    assert told(trials_of(tmp_path)) == undisturbed


def test_ctrl_c_twice_is_out_at_once(tmp_path: Path) -> None:
    done = search('Kinds', tmp_path, kill='ints:3')
    assert done.returncode == 130
    assert 'To resume' not in done.stdout
    # What was being written beside the steps may have been finished or not.
    assert trials_of(tmp_path)[0].state == 'ACTIVE'
