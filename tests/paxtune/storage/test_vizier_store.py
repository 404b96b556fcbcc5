"""The store, over all kinds of database."""

import datetime
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from vizier._src.service import resources, study_pb2
from vizier._src.service.sql_datastore import SQLDataStore

from paxtune.storage.codec import encode_study, encode_trial
from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.record import TrialRecord
from tests.conformance import store_suite
from tests.conformance.store_suite import STUDY, BrokenError, add, new_trial, note, noting
from tests.properties import examples
from trainer.symbolic.errors import UserError

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=['sqlite', 'postgres'])
def shared(request, tmp_path):
    """Where an empty database is that many may open."""
    if request.param == 'sqlite':
        return tmp_path / 'study.db'
    return request.getfixturevalue('postgres').emptied_database()


@pytest.fixture
def make(shared):
    """Makes stores of one database."""
    opened = []

    def make(name='study', read_only=False):
        opened.append(VizierStore(Database(shared, read_only), name))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.mark.parametrize('check', [*store_suite.ALL, *store_suite.SHARED])
@pytest.mark.contract
def test_a_store_of_a_shared_database(check, make):
    check(make)


@pytest.mark.parametrize('check', store_suite.ALL)
def test_a_store_in_memory(check):
    database = Database(None)
    check(lambda name='study': VizierStore(database, name))
    database.close()


_ADD = """
import sys
from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.record import TrialRecord

store = VizierStore(Database(sys.argv[1]))
print('ready', flush=True)
input()
print(*(store.add_trials([TrialRecord({})])[0].id for _ in range(50)))
store.close()
"""


def test_processes_that_add_trials_at_once_get_distinct_numbers(make, shared):
    store = make()
    store.create_study(STUDY, [])
    where = shared if isinstance(shared, str) else f'sqlite:///{shared}'
    processes = [
        subprocess.Popen(
            [sys.executable, '-c', _ADD, where],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == 'ready\n'
    for process in processes:
        assert process.stdin is not None
        process.stdin.write('go\n')
        process.stdin.flush()
    numbers = [int(n) for each in processes for n in _answer(each)]
    assert sorted(numbers) == list(range(1, 101)) == store.ids()


def _answer(process: subprocess.Popen[str]) -> list[str]:
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return text.split()


@pytest.mark.parametrize('name', ['', 'a/b', 'a\nb', 'a\0b'])
def test_names_that_no_study_can_have_are_refused(name):
    with pytest.raises(UserError, match='cannot be the name of a study'):
        VizierStore(Database(None), name)


@examples(30)
@given(
    st.lists(
        st.tuples(st.sampled_from(['add', 'change', 'break', 'delete']), st.integers(1, 5)),
        max_size=20,
    )
)
def test_a_store_does_what_a_dict_does(moves):
    store = VizierStore(Database(None))
    expected: dict[int, str] = {}
    for step, (move, id_) in enumerate(moves):
        try:
            _move(store, expected, move, id_, str(step))
        except KeyError:
            assert id_ not in expected
        except BrokenError:
            assert id_ in expected
    assert {trial.id: note(trial, 'what') for trial in store.trials()} == expected
    store.close()


def _move(store: VizierStore, expected: dict[int, str], move: str, id_: int, what: str) -> None:
    def change(trial: TrialRecord, now: datetime.datetime) -> TrialRecord:
        if move == 'break':
            raise BrokenError
        return noting(what=what)(trial, now)

    if move == 'add':
        id_ = max(expected, default=0) + 1
        assert add(store, what=what).id == id_
    elif move == 'delete':
        store.delete_trial(id_)
        del expected[id_]
        return
    else:
        store.apply(id_, change)
    expected[id_] = what


# --- Vizier's own store ---


def test_vizier_reads_what_we_write(tmp_path):
    store = VizierStore(Database(tmp_path / 'study.db'))
    store.create_study(STUDY, [])
    add(store, a='b')
    spec, (trial,) = store.study_spec(), store.protos()
    store.close()
    engine = sqlalchemy.create_engine(f'sqlite:///{tmp_path / "study.db"}')
    data = SQLDataStore(engine)
    (study,) = data.list_studies('owners/paxtune')
    assert (study.study_spec, study.display_name) == (spec, 'study')
    assert data.list_trials(study.name) == [trial]
    assert data.max_trial_id(study.name) == 1
    data._connection.close()
    engine.dispose()


def test_trials_written_by_vizier_are_read_and_changed(tmp_path):
    # As all studies were written before there were several in a database.
    engine = sqlalchemy.create_engine(f'sqlite:///{tmp_path / "study.db"}')
    data = SQLDataStore(engine)
    name = resources.StudyResource('paxtune', 'study').name
    spec = encode_study(STUDY)
    data.create_study(study_pb2.Study(name=name, display_name='study', study_spec=spec))
    for number in (1, 2):
        trial = encode_trial(new_trial(a='b'))
        trial.id, trial.name = str(number), f'{name}/trials/{number}'
        data.create_trial(trial)
    data._connection.close()
    engine.dispose()
    for read_only in (True, False):
        store = VizierStore(Database(tmp_path / 'study.db', read_only))
        assert (store.study(), store.ids()) == (STUDY, [1, 2])
        assert [note(trial, 'a') for trial in store.trials()] == ['b', 'b']
        if not read_only:
            store.apply(2, noting(a='c'))
            assert add(store).id == 3
            assert note(store.trial(2), 'a') == 'c'
            with store.database.reading() as connection:
                assert sqlalchemy.inspect(connection).has_index('trials', 'trials_by_number')
        store.close()
