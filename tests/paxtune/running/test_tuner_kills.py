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


@pytest.mark.parametrize(
    'where', ['saved:1', 'saved:10', 'save:2', 'step:4', 'suggestion:7', 'suggested:6', 'moved:12']
)
@pytest.mark.sentinel
def test_a_killed_study_ends_as_the_undisturbed_one(
    tmp_path: Path, undisturbed: list[Any], where: str
) -> None:
    killed = search('Kinds', tmp_path, kill=where)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = trials_of(tmp_path)
    out = passed(search('Kinds', tmp_path))
    assert told(trials_of(tmp_path)) == undisturbed
    done = sum(trial.is_terminal for trial in before)
    if done:
        assert f'{done} of {_TRIALS} trials are done' in out
    if where == 'saved:1':
        assert 'trial 1: resumed from step 2' in out


def test_a_study_survives_many_kills(tmp_path: Path, undisturbed: list[Any]) -> None:
    for where in ('saved:1', 'suggestion:2', 'save:3', 'suggested:3', 'moved:8', 'step:9'):
        assert search('Kinds', tmp_path, kill=where).returncode == -signal.SIGKILL
    passed(search('Kinds', tmp_path))
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
