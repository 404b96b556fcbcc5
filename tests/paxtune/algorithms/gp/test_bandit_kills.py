"""An architecture search by a Gaussian process whose process is killed, by real signals."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.factories.killed_searches import search, told, trials_of
from tests.servers.processes import passed

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    directory = tmp_path_factory.mktemp('undisturbed')
    passed(search('Modelled', directory))
    trials = trials_of(directory)
    assert [trial.state for trial in trials] == ['COMPLETED'] * 9
    assert all(trial.decisions['task.learner.learning_rate'] < 0.05 for trial in trials)
    # What only one of the two kinds of layers has is there with that kind alone.
    assert len({len(trial.decisions) for trial in trials}) == 2
    return told(trials)


@pytest.mark.parametrize('where', ['step:9', 'suggestion:6', 'suggested:7', 'moved:31'])
def test_a_killed_study_continues_with_the_same_suggestions(
    tmp_path: Path, undisturbed: list[Any], where: str
) -> None:
    killed = search('Modelled', tmp_path, kill=where)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    ended = [trial for trial in trials_of(tmp_path) if trial.is_terminal]
    assert len(ended) < len(undisturbed)
    passed(search('Modelled', tmp_path))
    assert told(trials_of(tmp_path)) == undisturbed
