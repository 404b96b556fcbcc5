"""The state of a study at one moment: pure functions of its records."""

import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import Budget
from paxtune.analysis.study_state import StudyState, TrialProgress, bare_trials
from paxtune.storage.open_study import open_study
from paxtune.study.record import Event, RunTime, Status, StudyRecord, TrialRecord
from paxtune.study.study import Study
from tests.factories.studies import ask, bare_state, finish, run
from tests.factories.toys import OBJECTIVES, search, toy

START = datetime.datetime(2026, 11, 25, 12, tzinfo=datetime.UTC)
SPEC = pg.to_json_str(pg.dna_spec(pg.floatv(0.0, 1.0)))
STUDY = StudyRecord(
    value='{}', search='{"budget": {"trials": 31}, "replicates": 1}', spec=SPEC, data={},
    goals=('minimize',),
)  # fmt: skip


def at(seconds: float) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


def _add_hours(study: Study) -> None:
    finish(trial := ask(study))
    trial.set_time(3600.0, 2)


@pytest.mark.parametrize(
    ('fields', 'act', 'is_done'),
    [
        ({}, run, True),
        ({'budget': Budget(2)}, lambda study: finish(ask(study)), False),
        ({'budget': Budget(1)}, ask, False),
        ({'budget': Budget(5, target_reward=0.5)}, lambda study: finish(ask(study)), True),
        ({'budget': Budget(5, target_reward=1e-9)}, lambda study: finish(ask(study)), False),
        ({'budget': Budget(5, hours=1.0)}, _add_hours, True),
        ({'budget': Budget(5, hours=1.5)}, _add_hours, False),
        ({'budget': Budget(5, device_hours=1.5)}, _add_hours, True),
        ({'budget': Budget(20), 'objective': OBJECTIVES}, run, True),
        ({'objective': None}, run, True),
    ],
)
@pytest.mark.parametrize('is_finite', [False, True])
@pytest.mark.fast(8)
def test_a_state_without_classes_says_what_the_study_says(
    tmp_path: Path,
    fields: dict[str, Any],
    act: Callable[[Study], Any],
    is_done: bool,
    is_finite: bool,
) -> None:
    space = {'rate': pg.oneof([0.1, 0.2]), 'layer': None, 'widths': pg.oneof([1, 2])}
    value = toy(search=search(**fields), **(space if is_finite else {}))
    with open_study(tmp_path, value) as study:
        act(study)
        found = bare_state(study)
        assert found.is_done == study.is_done == is_done
        assert found.num_trials == study.num_trials
        assert sum(found.counts.values()) == len(study.trials)
        if len(study.rewards) == 1:
            best = found.best and (found.best.trial.id, found.best.rewards[0])
            assert best == (study.best and (study.best.id, study.best.reward))
        if len(study.rewards) > 1:
            assert found.front == len(study.pareto_front)


def record(number: int, **fields: object) -> TrialRecord:
    events = tuple(Event(at(10 * number + i), name, 1) for i, name in enumerate(('a', 'b')))
    made = TrialRecord(
        {},
        number,
        Status.COMPLETED,
        created=START,
        ended=at(number),
        run_time=RunTime(30.0),
        history=events,
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def state(records: list[TrialRecord], *running: TrialRecord) -> StudyState:
    trials = bare_trials(STUDY, [*records, *running])
    progress = [TrialProgress(each, 'running', 1) for each in trials[len(records) :]]
    return StudyState(STUDY, trials, START, at(110), progress)


def active(number: int, worker: str, began: float) -> TrialRecord:
    claimed = (Event(at(began), 'claimed', 1),)
    return record(number, status=Status.ACTIVE, ended=None, holder=worker, history=claimed)


def test_the_last_events_of_all_trials_are_in_order_of_time() -> None:
    found = state([record(3), record(1), record(2)]).events(3)
    assert [(trial, each.event) for trial, each in found] == [(2, 'b'), (3, 'a'), (3, 'b')]


def test_the_time_left_is_that_of_the_last_trials_and_of_those_that_run() -> None:
    ended = [record(1, run_time=RunTime(1e6)), *(record(number) for number in range(2, 22))]
    first, second = active(30, 'a', 100), active(31, 'b', 0)
    assert state(ended, first).seconds_left == 10 * 30 - 10
    assert state(ended, first, second).seconds_left == (10 * 30 - 10 - 30) / 2
    assert state(ended, active(31, '', 0)).seconds_left is None
    assert state([], first).seconds_left is None


def test_two_states_have_one_version_only_where_nothing_differs() -> None:
    before = state([record(1)], active(2, 'a', 0))
    assert before.version == state([record(1)], active(2, 'a', 0)).version
    noted = dataclasses.replace(before, record=dataclasses.replace(STUDY, note='seen'))
    others = [noted, state([record(1), record(2)]), state([record(1)], active(2, 'b', 0))]
    assert len({each.version for each in (before, *others)}) == 4


def test_a_worker_between_two_trials_still_works() -> None:
    def ended(number: int, worker: str, when: float) -> TrialRecord:
        history = (Event(at(when), 'ended', 1, worker),)
        return record(number, ended=at(when), history=history)

    just, before = ended(1, 'a', 100), ended(2, 'b', 20)
    assert state([just, before]).workers == {'a'}
    assert state([before], active(3, 'c', 90), active(4, '', 90)).workers == {'c'}
