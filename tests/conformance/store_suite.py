"""The contract of stores, for any database. Each check takes a maker of stores.

    @pytest.mark.parametrize('check', store_suite.ALL)
    def test_my_store(check):
        check(lambda name='study': VizierStore(database, name))

The first store that a maker makes has no study yet; all others are of the same database. SHARED is
for databases that may be opened more than once: a maker takes `read_only`, too, and opens the
database again for each store.
"""

import dataclasses
import datetime
import threading
from collections.abc import Callable

import pytest

from paxtune.storage.vizier_store import VizierStore
from paxtune.study.invariants import InvariantError
from paxtune.study.record import StudyRecord, TrialRecord
from paxtune.study.transitions import Transition, TurnLostError
from trainer.symbolic.errors import UserError

Maker = Callable[..., VizierStore]

STUDY = StudyRecord('{}', '', '{}', {}, algorithm='AnAlgorithm')


class BrokenError(Exception):
    """Breaks off a transaction in a test."""


def new_trial(**metadata: str) -> TrialRecord:
    """A trial without a number."""
    return TrialRecord({}, metadata=metadata)


def add(store: VizierStore, **metadata: str) -> TrialRecord:
    """Adds one trial."""
    return store.add_trials([new_trial(**metadata)])[0]


def note(trial: TrialRecord, key: str) -> str | None:
    """A piece of metadata."""
    return trial.metadata.get(key)


def noting(**metadata: str) -> Transition:
    """A transition that adds metadata."""
    return lambda trial, _: dataclasses.replace(trial, metadata={**trial.metadata, **metadata})


def pausing(study: StudyRecord) -> StudyRecord:
    """Changes a study."""
    return dataclasses.replace(study, pause_requested=True)


def _made(make: Maker) -> VizierStore:
    store = make()
    assert store.create_study(STUDY, [])
    return store


def nothing_is_there_at_first(make: Maker) -> None:
    store = make()
    assert store.study() is None
    assert (store.ids(), store.trials(), store.max_id()) == ([], [], 0)
    assert store.database.studies() == []
    with pytest.raises(KeyError):
        store.created()
    with pytest.raises(KeyError):
        store.trial(1)
    with pytest.raises(KeyError):
        store.update_study(pausing)


def a_study_is_made_once(make: Maker) -> None:
    store = make()
    before = datetime.datetime.now(datetime.UTC)
    assert store.create_study(STUDY, [])
    assert before <= store.created() <= datetime.datetime.now(datetime.UTC)
    assert not store.create_study(dataclasses.replace(STUDY, algorithm='Another'), [])
    assert store.study() == STUDY
    assert store.database.studies() == ['study']


def a_study_can_be_changed(make: Maker) -> None:
    store = _made(make)
    changed = store.update_study(
        lambda study: dataclasses.replace(study, metadata={'a': 'ünï\0code'})
    )
    assert changed == store.study() == dataclasses.replace(STUDY, metadata={'a': 'ünï\0code'})
    spec = store.study_spec()
    assert spec is not None and spec.algorithm == STUDY.algorithm


def trials_are_numbered_in_order(make: Maker) -> None:
    store = _made(make)
    assert add(store).id == 1
    store.add_trials([new_trial(n='2'), new_trial(n='3')])
    store.add_trials([])
    assert add(store, n='4').id == 4
    assert store.ids() == [1, 2, 3, 4] == [trial.id for trial in store.trials()]
    assert store.protos()[-1].name.endswith('/trials/4')
    assert [note(trial, 'n') for trial in store.trials()] == [None, '2', '3', '4']
    assert store.max_id() == 4


def an_addition_for_an_older_study_is_refused(make: Maker) -> None:
    """A suggestion is for the trials that were there: another one has come meanwhile."""
    store = _made(make)
    add(store)
    with pytest.raises(TurnLostError, match='added in the meantime'):
        store.add_trials([new_trial()], after=0)
    assert [each.id for each in store.add_trials([new_trial()], after=1)] == [2]


def some_trials_are_read_in_order(make: Maker) -> None:
    store = _made(make)
    store.add_trials([new_trial(n=str(i)) for i in range(1, 601)])
    for wanted in ({7, 3, 600}, set(range(2, 600)), {601}, set()):
        found = [trial.id for trial in store.trials(wanted)]
        assert found == sorted(wanted - {601})
    assert note(store.trial(600), 'n') == '600'


def trials_come_back_as_they_were(make: Maker) -> None:
    store = _made(make)
    text = {'text': "'; DROP TABLE trials; -- %s :x ? ü\0", 'long': 'x' * 2_000_000}
    (trial,) = store.add_trials([TrialRecord({'rate': 0.1}, metadata=text)])
    assert store.trial(1) == trial == store.trials()[0]
    assert (trial.metadata, trial.parameters) == (text, {'rate': 0.1})


def a_change_that_raises_writes_nothing(make: Maker) -> None:
    store = _made(make)
    add(store, a='1')

    def change(trial: TrialRecord, now: datetime.datetime) -> TrialRecord:
        noting(a='2')(trial, now)
        raise BrokenError

    with pytest.raises(BrokenError):
        store.apply(1, change)
    assert note(store.trial(1), 'a') == '1'
    changed = store.apply(1, noting(a='3'))
    assert note(changed, 'a') == note(store.trial(1), 'a') == '3'


def a_change_that_breaks_an_invariant_writes_nothing(make: Maker) -> None:
    """The attempt of a trial never falls, whatever a transition returns."""
    store = _made(make)
    before = store.apply(add(store).id, lambda trial, _: dataclasses.replace(trial, attempt=3))
    with pytest.raises(InvariantError, match='attempt 2 comes after attempt 3'):
        store.apply(before.id, lambda trial, _: dataclasses.replace(trial, attempt=2))
    assert store.trial(before.id) == before


def a_transaction_that_raises_writes_nothing(make: Maker) -> None:
    store = _made(make)
    with pytest.raises(BrokenError), store.database.transaction():
        store.add_trials([new_trial(), new_trial()])
        store.update_study(pausing)
        assert store.max_id() == 2
        raise BrokenError
    assert store.max_id() == 0
    assert store.study() == STUDY
    assert add(store).id == 1


def an_inner_transaction_is_taken_back_alone(make: Maker) -> None:
    store = _made(make)
    with store.database.transaction():
        add(store)
        with pytest.raises(BrokenError), store.database.transaction():
            add(store)
            raise BrokenError
        assert add(store).id == 2
    assert store.ids() == [1, 2]


def deleted_trials_are_gone(make: Maker) -> None:
    store = _made(make)
    store.add_trials([new_trial() for _ in range(3)])
    store.delete_trial(2)
    assert store.ids() == [1, 3]
    for act in (store.trial, store.delete_trial, lambda id_: store.apply(id_, noting())):
        with pytest.raises(KeyError):
            act(2)
    store.delete_trial(3)
    assert store.max_id() == 1


def studies_do_not_see_each_other(make: Maker) -> None:
    store, other = _made(make), make(name='another, 50% as %(good)s')
    assert other.study() is None
    other.add_trials([new_trial(n='other') for _ in range(3)])
    assert other.create_study(dataclasses.replace(STUDY, algorithm='Another'), [])
    add(store, n='mine')
    assert (store.ids(), other.ids()) == ([1], [1, 2, 3])
    assert [note(trial, 'n') for trial in store.trials({1, 2})] == ['mine']
    other.delete_trial(1)
    assert note(store.trial(1), 'n') == 'mine'
    assert store.database.studies() == ['another, 50% as %(good)s', 'study']


def threads_wait_for_each_other(make: Maker) -> None:
    store = _made(make)
    add(store, count='0')

    def count(trial: TrialRecord, now: datetime.datetime) -> TrialRecord:
        return noting(count=str(int(note(trial, 'count') or 0) + 1))(trial, now)

    def work() -> None:
        for _ in range(5):
            add(store)
            store.apply(1, count)
            assert store.trials({1}) != []

    _at_once([work] * 4)
    assert store.ids() == list(range(1, 22))
    assert note(store.trial(1), 'count') == '20'


def what_one_writes_another_reads(make: Maker) -> None:
    store = _made(make)
    add(store, a='b')
    reader = make(read_only=True)
    assert (reader.study(), note(reader.trial(1), 'a')) == (STUDY, 'b')
    add(store)
    assert reader.ids() == [1, 2]
    store.close()
    assert make().ids() == [1, 2]


def a_reader_cannot_write(make: Maker) -> None:
    _made(make)
    reader = make(read_only=True)
    for write in (
        lambda: add(reader),
        lambda: reader.create_study(STUDY, []),
        lambda: reader.update_study(pausing),
    ):
        with pytest.raises(UserError, match='opened to be read only'):
            write()
    assert make().ids() == []


def of_many_that_make_a_study_one_does(make: Maker) -> None:
    made: list[bool] = []

    def work() -> None:
        made.append(make().create_study(STUDY, []))

    _at_once([work] * 4)
    assert sorted(made) == [False, False, False, True]


def a_transaction_keeps_others_waiting(make: Maker) -> None:
    store, other = _made(make), make()
    is_waiting = threading.Event()

    def work() -> None:
        is_waiting.set()
        add(other, who='other')

    thread = threading.Thread(target=work)
    with store.database.transaction():
        thread.start()
        assert is_waiting.wait(10)
        thread.join(0.1)
        assert thread.is_alive()
        assert store.max_id() == 0
        add(store, who='first')
    thread.join(30)
    assert [note(trial, 'who') for trial in store.trials()] == ['first', 'other']


def _at_once(work: list[Callable[[], None]]) -> None:
    """Calls all, each in its own thread; raises what one of them raised."""
    raised: list[BaseException] = []
    begin = threading.Barrier(len(work))

    def run(one: Callable[[], None]) -> None:
        try:
            begin.wait(10)
            one()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


ALL = [
    nothing_is_there_at_first,
    a_study_is_made_once,
    a_study_can_be_changed,
    trials_are_numbered_in_order,
    an_addition_for_an_older_study_is_refused,
    some_trials_are_read_in_order,
    trials_come_back_as_they_were,
    a_change_that_raises_writes_nothing,
    a_change_that_breaks_an_invariant_writes_nothing,
    a_transaction_that_raises_writes_nothing,
    an_inner_transaction_is_taken_back_alone,
    deleted_trials_are_gone,
    studies_do_not_see_each_other,
    threads_wait_for_each_other,
]

SHARED = [
    what_one_writes_another_reads,
    a_reader_cannot_write,
    of_many_that_make_a_study_one_does,
    a_transaction_keeps_others_waiting,
]
