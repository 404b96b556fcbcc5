"""A service that gets hostile requests of one role, and the readers of its studies afterwards."""

import contextlib
import dataclasses
import io
import json
import random
import tempfile
from collections.abc import Iterator
from typing import Any

import grpc
import msgspec
from vizier._src.service import study_pb2
from vizier._src.service import vizier_service_pb2 as pb

from paxtune.analysis.study_poller import StudyPoller, source_of
from paxtune.config.budget import Budget
from paxtune.objectives.measurement import Measurement
from paxtune.reports import study_report, study_tables
from paxtune.reports.lineage import lineage
from paxtune.reports.report_text import to_markdown
from paxtune.reports.tables import FORMATS, write
from paxtune.schedulers import MedianStopping
from paxtune.service import schema
from paxtune.service.calls import CallError, Calls
from paxtune.service.registry import DatabaseStudies
from paxtune.service.remote_store import RemoteStore
from paxtune.service.schema import METHODS, Role
from paxtune.service.tokens import Token
from paxtune.service.updates import digest
from paxtune.simulate.export import curves
from paxtune.storage.codec import encode_trial
from paxtune.storage.database import Database
from paxtune.storage.open_study import join_study, open_study
from paxtune.study import export, transitions
from paxtune.study.record import Status, TrialRecord
from paxtune.study.study import Study
from paxtune.vizier_service.service import METHODS as VIZIER
from paxtune.vizier_service.service import VizierService
from tests.factories.studies import finish
from tests.factories.toys import search, toy
from tests.factories.vizier_searches import number
from tests.fuzz.hostile_requests import Changer

STUDY, PLAIN = 'mine', 'owners/me/studies/plain'
_HONEST = 'a-token-that-is-honest'
_REFUSALS = {
    *(grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED),
    *(grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED),
    *(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ALREADY_EXISTS),
}
_VIZIER_PATH = '/vizier.VizierService/'


class FaultError(AssertionError):
    """A request made the service fail, or a reader of its studies."""


class _Client:
    """Calls the service in this process, as `paxtune.service.client.Client` does over gRPC."""

    endpoint, study, flag = 'here', STUDY, 'here'

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def call(self, request: Any) -> Any:
        name, values = schema.NAMES[type(request)], {'study': self.study}
        if isinstance(request, schema.Write):
            values['request_id'] = request.request_id or f'honest-{random.getrandbits(64)}'
        data = schema.encode(msgspec.structs.replace(request, **values))
        try:
            reply = self._calls.answer(schema.path(name), _authorized(_HONEST), data)
        except CallError as error:
            if error.rejection:
                raise schema.RequestRejectedError(error.rejection, str(error)) from error
            raise
        return schema.decode(METHODS[name].reply, reply)

    def another(self, timeout: float) -> '_Client':
        return self

    def close(self) -> None:
        pass


def _authorized(token: str) -> list[tuple[str, str]]:
    return [('authorization', f'Bearer {token}')]


class FuzzedService:
    """A service with a study of each kind of trial, and a study of a Vizier client.

    Attributes:
        counts: the number of replies by status code.
    """

    def __init__(self, role: Role, seed: int) -> None:
        """Makes the studies; requests come from a caller with the role."""
        self._rng = random.Random(f'{role.name} {seed}')
        self._changer = Changer(self._rng)
        self._token = f'a-token-of-{role.name.lower()}-role'
        self._role, self._seed, self._sent = role, seed, 0
        self._home = tempfile.TemporaryDirectory()
        self._database, self._now = Database(None), 0.0
        tokens = [Token(self._token, role), Token(_HONEST)]
        self._calls = Calls(
            DatabaseStudies(self._database, clock=lambda: self._now),
            tokens,
            vizier_service=VizierService(self._database),
        )
        self.counts: dict[str, int] = {}
        self._replenish()

    def close(self) -> None:
        self._database.close()
        self._home.cleanup()

    def _store(self, worker: str = '') -> RemoteStore:
        client: Any = _Client(self._calls)
        return RemoteStore(client, worker)

    @contextlib.contextmanager
    def _study(self, worker: str = '') -> Iterator[Study]:
        how = search(scheduler=MedianStopping(), budget=Budget(10**6))
        with open_study(self._home.name, toy(search=how), store=self._store(worker)) as study:
            yield study

    def _renew(self) -> None:
        """Makes the study again, for another directory."""
        self._home.cleanup()
        self._home = tempfile.TemporaryDirectory()
        self._replenish()

    def _replenish(self) -> None:
        """Has a worker hold a trial, where hostile requests ended those before.

        Leases and locks that they hold expire first.
        """
        self._now += 1000.0
        with self._study('worker') as study:
            trial = study.ask()
            assert trial is not None
            if not trial.view.measurements:
                trial.report(10, {'loss': 3.0, 'accuracy': 0.1}, 'checkpoints/10')
            others = [each for each in study.trials if each.status is Status.COMPLETED]
            if len(others) < 3:
                finish(trial)
                study.add({'rate': 0.01})
                self._replenish()

    # --- Requests ---

    def attack(self, count: int, between: int = 200) -> None:
        """Sends requests; after each `between` of them, and at the end, every reader must work.

        Raises:
            FaultError: one made the service, or a reader, fail.
        """
        methods = [name for name, method in METHODS.items() if method.role <= self._role]
        plain = [name for name, each in VIZIER.items() if Role[each.role] <= self._role]
        for index in range(count):
            if self._rng.random() < 0.75:
                # Trials are what readers read most.
                weighted = methods + ['update', 'update', 'add'] * (self._role >= Role.WORK)
                self._own(self._rng.choice(weighted))
            else:
                self._vizier(self._rng.choice(plain))
            if index % between == between - 1:
                self.read()
        self.read()

    def _own(self, name: str) -> None:
        fields = self._changer.request(self._valid(name))
        try:
            data = msgspec.msgpack.encode(fields)
        except (OverflowError, UnicodeEncodeError, TypeError):
            return  # No message can say so.
        self._send(schema.path(name), data, fields)

    def _valid(self, name: str) -> dict[str, Any]:
        store = self._store('worker')
        if store.study() is None:  # A request has deleted it.
            self._renew()
        trials = store.trials()
        values: dict[str, Any] = {
            'known': '', 'generation': '', 'since': 0, 'suggest_lock': '', 'worker': 'worker',
            'options': None, 'progress': 1, 'reason': 'a reason', 'counts': False, 'is_dead': False,
            'max_attempts': 3, 'workers': ['worker'], 'request_id': f'r{self._rng.getrandbits(60)}',
            'study': STUDY, 'after': None, 'id': 1, 'attempt': 1, 'trials': [], 'expected': '',
            'trial': b'', 'spec': b'', 'created': '1999-01-01',
        }  # fmt: skip
        if name in ('add', 'update') and trials:
            values |= self._written(store, trials)
        if name in ('create_study', 'update_study', 'redefine_study'):
            reply = store._client.call(schema.StudyRequest(known=''))
            spec = study_pb2.StudySpec.FromString(reply.spec or b'')
            values['expected'] = reply.version
            values['spec'] = self._changer.encoded(spec, study_pb2.StudySpec)
        if name == 'claim' or self._rng.random() < 0.2:
            values['worker'] = self._rng.choice(['worker', 'other', ''])
        kind = METHODS[name].request
        if name == 'study' or self._rng.random() < 0.02:
            values['study'] = self._rng.choice([STUDY, STUDY, 'other', '../x'])
        return {each.name: values[each.name] for each in msgspec.structs.fields(kind)}

    def _written(self, store: RemoteStore, trials: list[TrialRecord]) -> dict[str, Any]:
        """A change of the trial that the worker holds, or a new trial, as a hostile one writes."""
        held = [each for each in trials if each.holder == 'worker'] or trials[-1:]
        record = self._rng.choice(held)
        content = store._content[record.id]
        stored = study_pb2.Trial.FromString(content)
        now = store.now()
        steps = [each.step for each in record.measurements]
        changed = self._rng.choice([record, self._moved(record, max(steps, default=0) + 10, now)])
        encoded = self._changer.encoded(encode_trial(changed, stored), study_pb2.Trial)
        new = encode_trial(TrialRecord(record.parameters, metadata={'a': 'b'}))
        added = self._changer.encoded(new, study_pb2.Trial)
        return {
            'id': record.id,
            'expected': digest(content),
            'trial': encoded,
            'attempt': record.attempt,
            'worker': record.holder,
            'trials': [added],
        }

    def _moved(self, record: TrialRecord, step: int, now: Any) -> TrialRecord:
        measured = Measurement(step, {'loss': 1.0, 'accuracy': 0.5}, (1.0,), 'checkpoints/2')
        try:
            match self._rng.randrange(4):
                case 0:
                    return transitions.complete(record, measured, now)
                case 1:
                    return transitions.pause(record, step, 'wait', now)
                case 2:
                    return transitions.fail(record, 'no memory', now)
            return transitions.report(record, measured, ['accuracy'])
        except transitions.IllegalTransition:
            return dataclasses.replace(record, metadata={'c': 'd'})

    def _vizier(self, name: str) -> None:
        method = VIZIER[name]
        request = method.request()
        if method.field:
            suffix = f'/trials/{self._rng.randint(1, 4)}' if method.is_trial else ''
            setattr(request, method.field, PLAIN + suffix)
        if name == 'CreateStudy':
            request.parent = 'owners/me'
            request.study.display_name = 'plain'
            request.study.study_spec.CopyFrom(_plain_spec())
        elif name == 'CreateTrial':
            parameter = request.trial.parameters.add(parameter_id='x')
            parameter.value.number_value = 0.5
            request.trial.measurements.add(step_count=1).metrics.add(metric_id='loss', value=1.0)
        elif name == 'SuggestTrials':
            request.suggestion_count, request.client_id = 1, 'client'
        elif name in ('AddTrialMeasurement', 'CompleteTrial'):
            measured = 'measurement' if name.startswith('Add') else 'final_measurement'
            getattr(request, measured).metrics.add(metric_id='loss', value=1.0)
        elif name == 'UpdateMetadata':
            request.delta.add().metadatum.key = 'x'
        data = self._changer.encoded(request, method.request)
        self._send(f'{_VIZIER_PATH}{name}', data, request)

    def _send(self, path: str, data: bytes, what: Any) -> None:
        self._sent += 1
        try:
            self._calls.answer(path, _authorized(self._token), data)
            code = 'OK'
        except CallError as error:
            code = error.code.name
            if error.code not in _REFUSALS:
                raise FaultError(f'{self._where}: {path}: {code}: {what!r:.3000}') from error
        self.counts[code] = self.counts.get(code, 0) + 1

    @property
    def _where(self) -> str:
        return f'{self._role.name} seed {self._seed} request {self._sent}'

    # --- Readers ---

    def read(self) -> None:
        """Reads the studies in every way that there is, and goes on with the search."""
        try:
            self._read()
            self._read_plain()
            self._replenish()
        except Exception as error:
            raise FaultError(f'{self._where}: a reader failed: {error!r:.2000}') from error

    def _read(self) -> None:
        store = self._store()
        if store.study() is None:
            self._renew()
        state = StudyPoller(source_of(store, 'here')).poll()
        assert state.version and state.counts is not None
        state.events(10), state.is_done, state.best, state.seconds_left
        with join_study(store, None, True) as study, contextlib.redirect_stdout(io.StringIO()):
            json.dumps(export.export(study), allow_nan=False)
            curves(study)
            study.best, study.leaderboard, study.pareto_front, study.next_action(), study.curves()
            study.to_pandas()
            documents = [study_tables.summary(study), study_tables.trials_of(study)]
            documents += [lineage(study)]
            documents += [study_tables.history_of(study, each.id) for each in study.trials[-5:]]
            for document in documents:
                for format_ in FORMATS:
                    write(document, format_)
            to_markdown('title', study_report.sections(study, 'here', ''))

    def _read_plain(self) -> None:
        for name, request in (
            ('GetStudy', pb.GetStudyRequest(name=PLAIN)),
            ('ListTrials', pb.ListTrialsRequest(parent=PLAIN)),
            ('ListOptimalTrials', pb.ListOptimalTrialsRequest(parent=PLAIN)),
            (
                'SuggestTrials',
                pb.SuggestTrialsRequest(parent=PLAIN, client_id='honest', suggestion_count=1),
            ),
        ):
            self._honest(name, request)

    def _honest(self, name: str, request: Any) -> None:
        path, data = f'{_VIZIER_PATH}{name}', request.SerializeToString()
        try:
            self._calls.answer(path, _authorized(_HONEST), data)
        except CallError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                study = study_pb2.Study(display_name='plain', study_spec=_plain_spec())
                made = pb.CreateStudyRequest(parent='owners/me', study=study)
                self._honest('CreateStudy', made)
            elif error.code is grpc.StatusCode.FAILED_PRECONDITION:
                self._honest('DeleteStudy', pb.DeleteStudyRequest(name=PLAIN))
            else:
                raise


def _plain_spec() -> study_pb2.StudySpec:
    spec = study_pb2.StudySpec(algorithm='RANDOM_SEARCH', parameters=[number('x', 0.0, 1.0)])
    spec.metrics.add(metric_id='loss', goal='MINIMIZE')
    return spec
