"""An architecture search by a Gaussian process whose process is killed, by real signals."""

import signal
from pathlib import Path
from typing import Any

import pytest

from paxtune.study import Study
from paxtune.trial import Trial
from tests.paxtune import tunables
from tests.processes import command, passed

pytestmark = pytest.mark.slow

assert tunables.__name__  # Importing it makes its classes known to `Study.load`.


@pytest.fixture(scope='module')
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('cache')


def search(directory: Path, cache: Path, kill: str | None = None) -> Any:
    flags = ['--exp=tests.paxtune.tunables.Modelled', f'--job_log_dir={directory}']
    return command('paxtune.search', *flags, cache=cache, kill=kill)


def trials_of(directory: Path) -> list[Trial]:
    with Study.load(directory) as study:
        return study.trials


def told(trials: list[Trial]) -> list[Any]:
    return [
        (trial.id, trial.state, trial.decisions, [(m.step, m.reward) for m in trial.measurements])
        for trial in trials
    ]


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> list[Any]:
    directory = tmp_path_factory.mktemp('undisturbed')
    passed(search(directory, cache))
    trials = trials_of(directory)
    assert [trial.state for trial in trials] == ['COMPLETED'] * 9
    assert all(trial.decisions['task.learner.learning_rate'] < 0.05 for trial in trials)
    # What only one of the two kinds of layers has is there with that kind alone.
    assert len({len(trial.decisions) for trial in trials}) == 2
    return told(trials)


@pytest.mark.parametrize('where', ['step:9', 'suggestion:6', 'suggested:7', 'moved:31'])
def test_a_killed_study_goes_on_with_the_suggestions_of_the_undisturbed_one(
    tmp_path: Path, cache: Path, undisturbed: list[Any], where: str
) -> None:
    killed = search(tmp_path, cache, kill=where)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not all(trial.is_terminal for trial in trials_of(tmp_path)[-1:])
    passed(search(tmp_path, cache))
    assert told(trials_of(tmp_path)) == undisturbed
