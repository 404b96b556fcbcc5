"""The contract of engines. Each check takes what was seen of a study that an engine ran: `run`."""

import dataclasses
import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from paxtune import InProcess
from paxtune.service.study_location import StudyLocation
from paxtune.storage.open_study import load_study
from paxtune.study.trial import Trial
from tests.factories import engine_searches
from tests.factories.engine_searches import INTERRUPTED, STUDY
from tests.servers.processes import ROOT, environment

Search = Callable[[int, float | None], str]
"""The call of a search: (trials, hours) -> its outcome."""

_TRIALS = 4


@dataclasses.dataclass(frozen=True)
class Case:
    """An engine, and a study that it runs.

    Attributes:
        folder: of the search; empty.
        search: the call of the search.
        loss: the name of the disturbance by which a trial loses its process.
        trains: the trials are those of an experiment, not calls of a function.
        tolerance: the relative difference of rewards to those of the same trials in process.
        location: of the study; None for the directory.
    """

    folder: Path
    search: Search
    loss: str = 'fail'
    trains: bool = False
    tolerance: float = 0.0
    location: StudyLocation | None = None

    def trials(self) -> list[Trial]:
        """Reads the trials of the study."""
        location = self.location
        with load_study(self.folder / STUDY) if location is None else location.open() as study:
            return list(study.trials)


@dataclasses.dataclass(frozen=True)
class Life:
    """A study from its first search to its last.

    Attributes:
        outcomes: of the searches.
        paused: the trials after a pause.
        ended: the trials after the same call again, while which one trial lost its process.
        last: the trials after a call with more trials, and without hours for them.
    """

    case: Case
    outcomes: list[str]
    paused: list[Trial]
    ended: list[Trial]
    last: list[Trial]


def as_command(name: str, folder: Path, variables: Mapping[str, str]) -> Search:
    """Returns the call of a search in a process, with an engine of `engine_searches.ENGINES`."""

    def search(trials: int, hours: float | None) -> str:
        arguments = [name, str(folder), str(trials), str(hours or 0)]
        done = subprocess.run(
            [sys.executable, '-m', engine_searches.__name__, *arguments],
            env={**environment(), **variables},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f'{done.stdout}\n{done.stderr}'
        # Ray prints the output of its actors between the lines of a driver.
        found = [line for line in done.stdout.splitlines() if line in engine_searches.OUTCOMES]
        return found[-1]

    return search


def run(case: Case) -> Life:
    """Runs a study with an engine, which is disturbed on the way."""
    (case.folder / 'pause').touch()
    outcomes = [case.search(_TRIALS, None)]
    paused = case.trials()
    (case.folder / INTERRUPTED).unlink()
    (case.folder / case.loss).touch()
    while len(outcomes) < 3 and outcomes[-1] != 'done':
        outcomes.append(case.search(_TRIALS, None))
    ended = case.trials()
    outcomes.append(case.search(_TRIALS + 2, 1e-9))
    return Life(case, outcomes, paused, ended, case.trials())


@functools.cache
def _in_process(trains: bool) -> list[Trial]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        search = functools.partial(engine_searches.outcome, InProcess(), folder, trains=trains)
        assert search(_TRIALS, None) == 'done'
        return Case(folder, search).trials()


def a_pause_stops_new_trials(life: Life) -> None:
    assert life.outcomes[0] == 'paused'
    assert life.paused and not [trial for trial in life.paused if trial.record.holder]
    assert sum(trial.is_terminal for trial in life.paused) < _TRIALS


def the_same_call_continues_the_study(life: Life) -> None:
    assert life.outcomes[-2] == 'done'
    before, after = (
        {trial.id: trial.decisions for trial in trials} for trials in (life.paused, life.ended)
    )
    assert before.items() <= after.items()


def a_trial_that_lost_its_process_runs_in_another_one(life: Life) -> None:
    assert not (life.case.folder / life.case.loss).exists()
    histories = [trial.record.history for trial in life.ended]
    if life.case.loss == 'fail':  # The process gives its trial back.
        assert any(event.event == 'released' for history in histories for event in history)
        return
    (lost,) = (each for each in histories if 'lost' in [event.event for event in each])
    claims = [event.worker for event in lost if event.event == 'claimed']
    assert len(claims) > 1 and claims[-1] != claims[-2]


def the_same_seed_gives_the_same_trials_as_in_process(life: Life) -> None:
    found, alone = life.ended, _in_process(life.case.trains)
    assert [trial.state for trial in found] == ['COMPLETED'] * _TRIALS
    for trial, same in zip(found, alone, strict=True):
        assert trial.decisions == same.decisions
        curve, expected = (
            {each.step: each.reward for each in one.measurements} for one in (trial, same)
        )
        assert curve == pytest.approx(expected, rel=life.case.tolerance, abs=0.0)


def the_study_ends_by_its_budget(life: Life) -> None:
    assert len(life.ended) == _TRIALS  # By its trials, then by its hours.
    assert life.outcomes[-1] == 'done'
    assert [trial.record for trial in life.last] == [trial.record for trial in life.ended]


ALL = [
    a_pause_stops_new_trials,
    the_same_call_continues_the_study,
    a_trial_that_lost_its_process_runs_in_another_one,
    the_same_seed_gives_the_same_trials_as_in_process,
    the_study_ends_by_its_budget,
]
