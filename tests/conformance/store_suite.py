"""The contract of stores, for any database. Each check takes a maker of stores.

    @pytest.mark.parametrize('check', store_suite.ALL)
    def test_my_store(check):
        check(lambda name='study': Store(database, name))

The first store that a maker makes has no study yet; all others are of the same database. SHARED is
for databases that may be opened more than once: a maker takes `read_only`, too, and opens the
database again for each store.
"""

import datetime
import threading
from collections.abc import Callable

import pytest

from paxtune.storage.vizier_store import Store, StudySpec, TrialProto, note, notes, write_notes
from trainer.symbolic.errors import UserError

Maker = Callable[..., Store]

SPEC = StudySpec(algorithm='AnAlgorithm')


class BrokenError(Exception):
    """Breaks off a transaction in a test."""


def new_trial(**notes: str) -> TrialProto:
    """A trial without a number."""
    trial = TrialProto(state=TrialProto.State.ACTIVE)
    write_notes(trial, notes)
    return trial


def _made(make: Maker) -> Store:
    store = make()
    assert store.create_study(SPEC)
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
        store.write_study_notes({'a': 'b'})


def a_study_is_made_once(make: Maker) -> None:
    store = make()
    before = datetime.datetime.now(datetime.UTC)
    assert store.create_study(SPEC)
    assert before <= store.created() <= datetime.datetime.now(datetime.UTC)
    assert not store.create_study(StudySpec(algorithm='Another'))
    assert store.study() == SPEC
    assert store.database.studies() == ['study']


def notes_are_added_and_changed(make: Maker) -> None:
    store = _made(make)
    store.write_study_notes({'a': '1', 'b': 'ünï\0code'})
    store.update_study_notes(lambda known: {'a': known['a'] + '!'})
    spec = store.study()
    assert spec is not None and notes(spec) == {'a': '1!', 'b': 'ünï\0code'}
    assert spec.algorithm == SPEC.algorithm


def trials_are_numbered_in_order(make: Maker) -> None:
    store = _made(make)
    assert store.add_trial(new_trial()).id == '1'
    store.add_trials([new_trial(n='2'), new_trial(n='3')])
    store.add_trials([])
    assert store.add_trial(new_trial(n='4')).name.endswith('/trials/4')
    assert store.ids() == [1, 2, 3, 4] == [int(trial.id) for trial in store.trials()]
    assert [note(trial, 'n') for trial in store.trials()] == [None, '2', '3', '4']
    assert store.max_id() == 4


def some_trials_are_read_in_order(make: Maker) -> None:
    store = _made(make)
    store.add_trials([new_trial(n=str(i)) for i in range(1, 601)])
    for wanted in ({7, 3, 600}, set(range(2, 600)), {601}, set()):
        found = [int(trial.id) for trial in store.trials(wanted)]
        assert found == sorted(wanted - {601})
    assert note(store.trial(600), 'n') == '600'


def trials_come_back_as_they_were(make: Maker) -> None:
    store = _made(make)
    trial = new_trial(text="'; DROP TABLE trials; -- %s :x ? ü\0", long='x' * 2_000_000)
    trial.parameters.add(parameter_id='rate').value.number_value = 0.1
    store.add_trial(trial)
    assert store.trial(1) == trial == store.trials()[0]


def a_change_that_raises_writes_nothing(make: Maker) -> None:
    store = _made(make)
    store.add_trial(new_trial(a='1'))

    def change(trial: TrialProto) -> None:
        write_notes(trial, {'a': '2'})
        raise BrokenError

    with pytest.raises(BrokenError):
        store.update_trial(1, change)
    assert note(store.trial(1), 'a') == '1'
    changed = store.update_trial(1, lambda trial: write_notes(trial, {'a': '3'}))
    assert note(changed, 'a') == note(store.trial(1), 'a') == '3'


def a_transaction_that_raises_writes_nothing(make: Maker) -> None:
    store = _made(make)
    with pytest.raises(BrokenError), store.database.transaction():
        store.add_trials([new_trial(), new_trial()])
        store.write_study_notes({'a': 'b'})
        assert store.max_id() == 2
        raise BrokenError
    assert store.max_id() == 0
    assert store.study() == SPEC
    assert store.add_trial(new_trial()).id == '1'


def an_inner_transaction_is_taken_back_alone(make: Maker) -> None:
    store = _made(make)
    with store.database.transaction():
        store.add_trial(new_trial())
        with pytest.raises(BrokenError), store.database.transaction():
            store.add_trial(new_trial())
            raise BrokenError
        assert store.add_trial(new_trial()).id == '2'
    assert store.ids() == [1, 2]


def deleted_trials_are_gone(make: Maker) -> None:
    store = _made(make)
    store.add_trials([new_trial() for _ in range(3)])
    store.delete_trial(2)
    assert store.ids() == [1, 3]
    for act in (store.trial, store.delete_trial, lambda id_: store.update_trial(id_, print)):
        with pytest.raises(KeyError):
            act(2)
    store.delete_trial(3)
    assert store.max_id() == 1


def studies_do_not_see_each_other(make: Maker) -> None:
    store, other = _made(make), make(name='another, 50% as %(good)s')
    assert other.study() is None
    other.add_trials([new_trial(n='other') for _ in range(3)])
    assert other.create_study(StudySpec(algorithm='Another'))
    store.add_trial(new_trial(n='mine'))
    assert (store.ids(), other.ids()) == ([1], [1, 2, 3])
    assert [note(trial, 'n') for trial in store.trials({1, 2})] == ['mine']
    other.delete_trial(1)
    assert note(store.trial(1), 'n') == 'mine'
    assert store.database.studies() == ['another, 50% as %(good)s', 'study']


def threads_wait_for_each_other(make: Maker) -> None:
    store = _made(make)
    store.add_trial(new_trial(count='0'))

    def count(trial: TrialProto) -> None:
        write_notes(trial, {'count': str(int(note(trial, 'count') or 0) + 1)})

    def work() -> None:
        for _ in range(5):
            store.add_trial(new_trial())
            store.update_trial(1, count)
            assert store.trials({1}) != []

    _at_once([work] * 4)
    assert store.ids() == list(range(1, 22))
    assert note(store.trial(1), 'count') == '20'


def what_one_writes_another_reads(make: Maker) -> None:
    store = _made(make)
    store.add_trial(new_trial(a='b'))
    reader = make(read_only=True)
    assert (reader.study(), note(reader.trial(1), 'a')) == (SPEC, 'b')
    store.add_trial(new_trial())
    assert reader.ids() == [1, 2]
    store.close()
    assert make().ids() == [1, 2]


def a_reader_cannot_write(make: Maker) -> None:
    _made(make)
    reader = make(read_only=True)
    for write in (
        lambda: reader.add_trial(new_trial()),
        lambda: reader.create_study(SPEC),
        lambda: reader.write_study_notes({'a': 'b'}),
    ):
        with pytest.raises(UserError, match='opened to be read only'):
            write()
    assert make().ids() == []


def of_many_that_make_a_study_one_does(make: Maker) -> None:
    made: list[bool] = []

    def work() -> None:
        made.append(make().create_study(SPEC))

    _at_once([work] * 4)
    assert sorted(made) == [False, False, False, True]


def a_transaction_keeps_others_waiting(make: Maker) -> None:
    store, other = _made(make), make()
    is_waiting = threading.Event()

    def work() -> None:
        is_waiting.set()
        other.add_trial(new_trial(who='other'))

    thread = threading.Thread(target=work)
    with store.database.transaction():
        thread.start()
        assert is_waiting.wait(10)
        thread.join(0.1)
        assert thread.is_alive()
        assert store.max_id() == 0
        store.add_trial(new_trial(who='first'))
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
    notes_are_added_and_changed,
    trials_are_numbered_in_order,
    some_trials_are_read_in_order,
    trials_come_back_as_they_were,
    a_change_that_raises_writes_nothing,
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
