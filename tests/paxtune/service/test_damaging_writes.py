"""Writes of clients that would keep readers from reading the study: all of them are refused."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from paxtune.config.budget import Budget
from paxtune.service.remote_store import RemoteStore
from paxtune.service.schema import RequestRejectedError
from paxtune.service.server import Server
from paxtune.service.updates import digest
from paxtune.storage.codec import StudySpec, TrialProto, encode_study
from paxtune.storage.database import Database
from paxtune.storage.database import trials as stored_trials
from paxtune.storage.open_study import open_study
from paxtune.study import export
from paxtune.study.record import Status, StudyRecord
from paxtune.study.study import Study
from tests.factories.clocked_service import Service
from tests.factories.studies import ask, finish
from tests.factories.toys import search, toy
from tests.paxtune.service.conftest import client_of
from trainer.symbolic.errors import UserError

Change = Callable[[TrialProto], object]


def measured(step: int = 20, /, elapsed: int = 0, **metrics: float) -> Change:
    """Adds a measurement."""

    def change(proto: TrialProto) -> None:
        added = proto.measurements.add(step_count=step)
        added.elapsed_duration.seconds = elapsed
        for name, value in metrics.items():
            added.metrics.add(metric_id=name.replace('_', '$'), value=value)

    return change


def record(**fields: Any) -> Change:
    """Changes fields in the JSON of the record."""

    def change(proto: TrialProto) -> None:
        (item,) = (each for each in proto.metadata if each.key == 'record')
        item.value = json.dumps(json.loads(item.value) | fields)

    return change


def ended(*values: float) -> Change:
    """Completes the trial, with rewards."""

    def change(proto: TrialProto) -> None:
        record(status='completed', holder='')(proto)
        proto.state = TrialProto.State.SUCCEEDED
        proto.end_time.GetCurrentTime()
        for index, value in enumerate(values):
            name = f'$reward.{index}' if index else '$reward'
            proto.final_measurement.metrics.add(metric_id=name, value=value)

    return change


def decision(name: str, value: Any) -> Change:
    """Changes a decision."""

    def change(proto: TrialProto) -> None:
        found = next(each for each in proto.parameters if each.parameter_id == name)
        kind = 'string_value' if isinstance(value, str) else 'number_value'
        setattr(found.value, kind, value)

    return change


def naive_event(proto: TrialProto) -> None:
    record(history=[{'time': '2026-01-01T00:00:00', 'event': 'claimed', 'attempt': 1}])(proto)


EVENT = {'time': '2026-01-01T00:00:00Z', 'event': 'claimed', 'attempt': 1}

CHANGES: dict[str, Change] = {
    'nan': measured(loss=float('nan')),
    'inf': measured(loss=float('inf')),
    'nan in an earlier step': lambda proto: setattr(
        proto.measurements[0].metrics[0], 'value', float('nan')
    ),
    'nan reward': measured(_reward=float('nan')),
    'two rewards': measured(20, 0, loss=1.0, _reward=1.0, **{'_reward.1': 2.0}),
    'another reserved name': measured(_mine=1.0),
    'negative step': measured(-1, loss=1.0),
    'descending step': measured(5, loss=1.0),
    'the same step': measured(10, loss=1.0),
    'huge step': measured(2**60, loss=1.0),
    'negative time of a step': measured(elapsed=-5, loss=1.0),
    'huge time of a step': measured(elapsed=10**11, loss=1.0),
    'completed without a reward': ended(),
    'completed with three rewards': ended(1.0, 2.0, 3.0),
    'completed with nan': ended(float('nan')),
    'paused without a pause': record(status='paused', holder=''),
    'pauses in another order': record(pauses=[20, 10]),
    'negative pause': record(pauses=[-1]),
    'parent that is not there': record(lineage={'parent': 99}),
    'parent of itself': record(lineage={'parent': 1}),
    'fork of none': record(lineage={'forked_from': [0, 1]}),
    'retry of none': record(lineage={'retry_of': -3}),
    'weights of none': record(lineage={'warm_start': 10**9}),
    'weights of itself': record(lineage={'warm_start': 1}),
    'replicate 0': record(lineage={'replicate': 0}),
    'no origin': record(lineage={'origin': ''}),
    'seconds below zero': record(run_time={'seconds': -1.0, 'devices': 1}),
    'endless seconds': record(run_time={'seconds': 1e308, 'devices': 1}),
    'devices below zero': record(run_time={'seconds': 1.0, 'devices': -1}),
    'suggested in no time': record(suggest_seconds=-1.0),
    'profile': record(profile={'training': -100.0}),
    'huge integer': record(non_finite={'loss': 10**30}),
    'checkpoint elsewhere': lambda proto: (
        measured(20, loss=1.0)(proto),
        record(checkpoints={'20': '/etc/passwd'})(proto),
    ),
    'checkpoint above': lambda proto: (
        measured(20, loss=1.0)(proto),
        record(checkpoints={'20': 'trials/0001-x/../../../x'})(proto),
    ),
    'negative earlier step': lambda proto: setattr(proto.measurements[0], 'step_count', -3),
    'checkpoint of an earlier step elsewhere': record(checkpoints={'10': '/etc/passwd'}),
    'event without a time zone': naive_event,
    'event in the year 1': record(history=[EVENT | {'time': '0001-01-01T00:00:00Z'}]),
    'attempt of an event': record(history=[EVENT | {'attempt': 10**30}]),
    'long reason': record(reason='x' * 200_000),
    'unprintable attribute': record(attributes={'a\nb': 1}),
    'unknown field': record(unknown=1),
    'no record': record(attempt='x'),
    'number beyond a range': decision('rate', 5.0),
    'nan decision': decision('rate', float('nan')),
    'no candidate': decision('layer', '7/Dense'),
    'equal candidates of distinct ones': decision('widths[1]', 4.0),
    'no decisions': lambda proto: proto.ClearField('parameters'),
    'another decision': lambda proto: proto.parameters.add(parameter_id='other'),
    'ended without a time': lambda proto: (ended(1.0)(proto), proto.ClearField('end_time')),
    'no state': lambda proto: setattr(proto, 'state', 0),
    'nothing': lambda proto: proto.Clear(),
}


@pytest.fixture
def study(service: Service) -> Study:
    """The study of a worker, which holds a trial."""
    made = service.study('a')
    trial = ask(made)
    trial.report(10, {'loss': 1.0, 'accuracy': 0.5})
    return made


def reads_as(study: Study) -> str:
    return json.dumps(export.export(study)['trials'], allow_nan=False)


@pytest.mark.fast(20)
@pytest.mark.parametrize('name', CHANGES)
def test_a_change_that_readers_cannot_read_is_refused(
    service: Service, study: Study, name: str
) -> None:
    before, stored = reads_as(study), service.coordinator.changes('', 0).trials[0]
    proto = TrialProto.FromString(stored)
    CHANGES[name](proto)
    call: dict[str, Any] = {'id': 1, 'expected': digest(stored), 'worker': 'a', 'attempt': 1}
    with pytest.raises(RequestRejectedError) as refusal:
        service.coordinator.update(**call, trial=proto.SerializeToString(), request_id='r')
    assert refusal.value.code == 'invalid'
    assert len(str(refusal.value)) < 1000
    added = TrialProto.FromString(stored)
    record(status='requested', holder='', lineage={})(added)
    added.state = TrialProto.State.REQUESTED
    CHANGES[name](added)
    if name != 'paused without a pause':  # The state of a new trial is Vizier's.
        with pytest.raises(RequestRejectedError):
            service.coordinator.add([added.SerializeToString()], '', 'a', 'r2', None)
    assert reads_as(service.study('b')) == before


def test_changes_within_the_bounds_are_written(service: Service, study: Study) -> None:
    stored = service.coordinator.changes('', 0).trials[0]
    proto = TrialProto.FromString(stored)
    measured(20, loss=0.5, _reward=0.5)(proto)
    record(checkpoints={'20': '/runs/study/trials/0001-rate=1/checkpoints/20'}, pauses=[10])(proto)
    call: dict[str, Any] = {'id': 1, 'expected': digest(stored), 'worker': 'a', 'attempt': 1}
    assert service.coordinator.update(**call, trial=proto.SerializeToString(), request_id='r').done
    assert [each.step for each in service.study('b').trial(1).measurements] == [10, 20]


def test_a_trial_that_is_too_large_is_refused(service: Service, study: Study) -> None:
    content = b'\x2a\x02\x10\x01' * (3 * 2**20)
    with pytest.raises(RequestRejectedError, match=r'12,582,912 bytes are more than 8,388,608'):
        service.coordinator.add([content], '', 'a', 'r', None)


def test_steps_of_an_attempt_that_begins_anew_are_put_in_order(study: Study) -> None:
    trial = study.open_trial(1)
    trial.report(20, {'loss': 0.5, 'accuracy': 0.5})
    trial.report(15, {'loss': 0.75, 'accuracy': 0.5})
    assert [each.step for each in trial.view.record.measurements] == [10, 15, 20]


@pytest.mark.parametrize(
    'fields',
    [
        {'value': '[]'},
        {'value': 'x'},
        {'search': '7'},
        {'search': '{}'},
        {'search': '{"budget": {"trials": -1}}'},
        {'spec': '{}'},
        {'spec': '{"_type": "os.system"}'},
        {'goals': ('maximise',)},
        {'exhausted': -1},
        {'exhausted': 2**70},
        {'notes': {0: 'x'}},
        {'notes': {1: 'x' * 20_000}},
        {'note': 'x' * 20_000},
        {'stop_requests': (-1,)},
        {'profile': {'training': 1e300}},
    ],
    ids=str,
)
def test_a_study_that_readers_cannot_read_is_refused(
    service: Service, study: Study, fields: dict[str, Any]
) -> None:
    before = study.record
    changed = dataclasses.replace(before, **fields)
    if fields.keys() <= {'goals'}:
        spec = encode_study(dataclasses.replace(changed, goals=()))
        (item,) = (each for each in spec.metadata if each.key == 'record')
        item.value = json.dumps(json.loads(item.value) | {'goals': ['maximise']})
    else:
        spec = encode_study(changed)
    reply = service.coordinator.study('')
    for write in (
        lambda: service.coordinator.create_study(spec.SerializeToString()),
        lambda: service.coordinator.update_study(reply.version, spec.SerializeToString(), 'r'),
    ):
        with pytest.raises(RequestRejectedError) as refusal:
            write()
        assert refusal.value.code == 'invalid'
    assert service.study('b').record == before
    assert isinstance(before, StudyRecord) and StudySpec.FromString(reply.spec or b'')


# --- A trial that is damaged already ---


def damage(database: Database, number: int, content: bytes | None = None) -> None:
    """Writes a NaN into a stored trial, or other bytes, as a defect of a disk might."""
    with database.transaction() as connection:
        here = stored_trials.c.trial_id == number
        ((found,),) = connection.execute(
            sqlalchemy.select(stored_trials.c.serialized_trial).where(here)
        ).all()
        proto = TrialProto.FromString(found)
        measured(99, loss=float('nan'))(proto)
        written = proto.SerializeToString() if content is None else content
        connection.execute(stored_trials.update().where(here).values(serialized_trial=written))


@pytest.mark.parametrize('content', [None, b'\xff\xff', b''], ids=['nan', 'bytes', 'empty'])
def test_a_damaged_trial_never_stops_a_study(
    service: Service, study: Study, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    finish(study.open_trial(1))
    finish(ask(study))
    finish(ask(study))
    damage(service.database, 3, content)
    service.restart()
    other = service.study('b')
    assert [each.id for each in other.trials] == [1, 2]
    assert 'trial 3 is left out: ' in caplog.text
    assert caplog.text.count('is left out') == 2  # In the service, and in its client.
    trial = ask(other)
    assert trial.id == 4
    finish(trial)
    assert len(json.loads(reads_as(other))) == 3
    other.delete_trial(3)
    assert other.store.ids() == [1, 2, 4]


@pytest.fixture
def worker(server: Server, tmp_path: Path) -> Iterator[Study]:
    store = RemoteStore(client_of(server), 'w-1')
    with open_study(tmp_path, toy(search=search(budget=Budget(9))), store=store) as study:
        finish(ask(study))
        finish(ask(study))
        ask(study)
        yield study


def test_delete_removes_trials_of_a_service(
    worker: Study, told: Callable[..., str], registry: Callable[[str], Any]
) -> None:
    with pytest.raises(UserError, match=r'nothing was deleted\. With --yes, trial 2 would be'):
        told('delete', 2)
    with pytest.raises(UserError, match='has no trial 8'):
        told('delete', 2, 8, '--yes')
    with pytest.raises(UserError, match=r'trial 3 stays: w-1 runs it\. `studies stop` ends it'):
        told('delete', 2, 3, '--yes')
    assert [each.id for each in worker.trials] == [1, 2, 3]
    assert told('delete', 2, '--yes') == (
        'Deleted: trial 2. Their directories stay where their workers wrote them.\n'
    )
    assert [each.id for each in worker.trials] == [1, 3]
    assert worker.trials[0].status is Status.COMPLETED


def test_delete_removes_a_damaged_trial_of_a_service(
    worker: Study, told: Callable[..., str], database: Database
) -> None:
    damage(database, 2)
    worker.store.close()
    assert '"trial": 1' in told('trials', '--json')
    told('delete', 2, '--yes')
    assert '"trial": 3' in told('trials', '--json')
