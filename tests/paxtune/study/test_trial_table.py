"""Trials that are read again and again: only changes are read, and computed from."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.study.record import Status, StudyRecord, TrialRecord
from paxtune.study.trial import Trial, TrialContext
from paxtune.study.trial_table import TrialTable, column
from tests.conformance.store_suite import add, noting
from tests.factories.studies import opened

CONTEXT = TrialContext([1.0])


def trial(number: int, status: Status = Status.COMPLETED) -> Trial:
    return Trial(TrialRecord({}, id=number, status=status), CONTEXT)


class Counted:
    """The number of a trial; counts how often it is computed."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, trial: Trial) -> int:
        self.numbers.append(trial.id)
        return trial.id


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    with contextlib.closing(LocalStore(Database(tmp_path / 'study.db'))) as made:
        made.create_study(StudyRecord('{}', '', '{}', {}), [])
        yield made


def none(number: int) -> bool:
    return False


def test_a_second_reading_has_only_the_changes(store: LocalStore) -> None:
    for _ in range(3):
        add(store)
    first = store.read(none)
    assert (first.numbers, len(first.records)) == ([1, 2, 3], 3)
    assert store.read(none, first.version)[1:] == (None, [])
    store.apply(2, noting(a='1'))
    add(store)
    second = store.read(none, first.version)
    assert second.numbers is None
    assert sorted(record.id for record in second.records) == [2, 4]


def test_a_deletion_is_read(store: LocalStore) -> None:
    add(store)
    add(store)
    version = store.read(none).version
    store.delete_trial(2)
    assert store.read(lambda number: number == 1, version)[1:] == ([1], [])


def test_a_write_of_another_connection_is_read(store: LocalStore) -> None:
    add(store)
    version = store.read(none).version
    assert store.database.path is not None
    with contextlib.closing(LocalStore(Database(store.database.path))) as other:
        add(other)
    found = store.read(lambda number: number == 1, version)
    assert (found.numbers, [record.id for record in found.records]) == ([1, 2], [2])


def test_a_write_that_was_taken_back_is_no_change(store: LocalStore) -> None:
    add(store)
    version = store.read(none).version
    with pytest.raises(RuntimeError), store.database.transaction():
        add(store)
        raise RuntimeError
    assert store.read(lambda number: number == 1, version).numbers == [1]


def test_another_store_knows_no_version_of_this_one(store: LocalStore) -> None:
    add(store)
    version = store.read(none).version
    with contextlib.closing(LocalStore(Database(None))) as other:
        other.create_study(StudyRecord('{}', '', '{}', {}), [])
        assert other.read(none, version).numbers == []


def test_the_list_is_the_same_until_a_trial_changes() -> None:
    with opened() as study:
        study.ask()
        trials = study.current
        assert study.current is trials
        study.ask()
        assert [each.id for each in study.current] == [1, 2]
        assert [each.id for each in trials] == [1]


def test_a_list_of_the_caller_is_a_copy() -> None:
    with opened() as study:
        study.ask()
        study.trials.clear()
        assert len(study.trials) == 1


def test_a_deleted_trial_is_gone_from_a_study_and_its_number_may_come_again() -> None:
    with opened() as study:
        first = study.ask()
        assert first is not None
        study.tell(first, infeasible='no')
        assert study.trials[0].status is Status.INFEASIBLE
        study.delete_trial(1)
        assert study.trials == []
        study.ask()
        assert [each.status for each in study.trials] == [Status.ACTIVE]


def test_a_column_is_computed_once_for_each_trial() -> None:
    table, value = TrialTable(), Counted()
    for number in (1, 2, 3):
        table.put(trial(number, Status.ACTIVE))
    before = table.trials()
    assert column(before, value) == [1, 2, 3]
    table.put(trial(2))
    table.put(trial(4))
    assert column(table.trials(), value) == [1, 2, 3, 4]
    assert sorted(value.numbers) == [1, 2, 2, 3, 4]
    assert column(before, value) == [1, 2, 3]
    assert column(table.trials(), value) == [1, 2, 3, 4]


def test_a_column_follows_a_deletion_and_a_late_number() -> None:
    table, value = TrialTable(), Counted()
    for number in (1, 3):
        table.put(trial(number, Status.ACTIVE))
    assert column(table.trials(), value) == [1, 3]
    table.put(trial(2, Status.ACTIVE))
    assert column(table.trials(), value) == [1, 2, 3]
    assert [each.id for each in table.trials().unended] == [1, 2, 3]
    table.forget(1)
    assert column(table.trials(), value) == [2, 3]


def test_a_table_knows_the_trials_that_changed_after_a_revision() -> None:
    table = TrialTable()
    table.put(trial(1, Status.ACTIVE))
    first = table.trials()
    assert first.since(0) is None
    assert first.since(first.revision) == []
    table.put(trial(1))
    assert [each.id for each in table.trials().since(first.revision) or []] == [1]
    assert first.copy().since(first.revision) is None


def test_unended_trials_keep_their_order() -> None:
    table = TrialTable()
    for number in (1, 2, 3):
        table.put(trial(number, Status.ACTIVE))
    table.put(trial(1, Status.PAUSED))
    assert [each.id for each in table.trials().unended] == [1, 2, 3]
    table.put(trial(2))
    assert [each.id for each in table.trials().unended] == [1, 3]
