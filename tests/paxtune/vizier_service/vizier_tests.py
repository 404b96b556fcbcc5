"""Runs tests that google-vizier ships against our server: in a process of its own.

    python -m tests.paxtune.vizier_service.vizier_tests clients servicer

What Vizier's tests start in place of its server is ours. The last line is JSON: how many tests have
run, and which have failed. (Importing Vizier's servicer changes JAX for the whole process.)
"""

import contextlib
import json
import os
import sys
import unittest

from vizier._src.service import (
    clients_test,
    grpc_util,
    vizier_client,
    vizier_client_test,
    vizier_server,
    vizier_service,
    vizier_service_test,
)
from vizier._src.service import vizier_service_pb2_grpc as pb_grpc

from paxtune.service.registry import StudyRegistry
from paxtune.service.server import Server
from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore
from paxtune.vizier_service import names
from paxtune.vizier_service.errors import VizierError
from paxtune.vizier_service.service import METHODS, VizierService

# They stop a random trial, as the policy of Vizier's open-source server does.
_RANDOM_STOPS = ['test_early_stopping', 'test_should_trial_stop']
# It starts no server.
_LOCAL = ['test_unset_endpoint_client']

stack = contextlib.ExitStack()


class Datastore:
    """The data of a servicer, which tests write and read directly."""

    def __init__(self, database):
        self._database = database

    def _store(self, name):
        owner, study = names.study_of(name)
        return VizierStore(self._database, study, owner)

    def create_study(self, study):
        def change(proto):
            proto.state = study.state

        store = self._store(study.name)
        assert store.create_from_spec(study.study_spec)
        store.update_proto(change)

    def load_study(self, name):
        return self._store(name).study_proto()

    def create_trial(self, trial):
        self._store(names.trial_of(trial.name)[0]).restore_protos([trial])

    def get_trial(self, name):
        study, number = names.trial_of(name)
        return self._store(study).protos([number])[0]


class Servicer(pb_grpc.VizierServiceServicer):
    """Our service in place of Vizier's servicer, which tests call directly."""

    def __init__(self, database_url=None, early_stop_recycle_period=None):
        database = Database(None)
        self.datastore, self._service = Datastore(database), VizierService(database)
        for name, method in METHODS.items():
            setattr(self, name, self._caller(name, method))

    def _caller(self, name, method):
        stub = pb_grpc.VizierServiceStub(_Replies())

        def call(request, context=None):
            try:
                reply = self._service.answer(name, request.SerializeToString())
            except VizierError as error:
                failed = grpc_util.LocalRpcError(str(error))
                failed.set_code(error.code)
                raise failed from error
            return getattr(stub, name)(reply)

        return call


class _Replies:
    """A channel whose methods decode replies."""

    def unary_unary(self, path, request_serializer, response_deserializer, **more):
        return response_deserializer


class OurServer:
    """Our server in place of Vizier's `DefaultVizierServer`."""

    def __init__(self, host='localhost', database_url=None, early_stop_recycle_period=None):
        database = stack.enter_context(contextlib.closing(Database(None)))
        service = VizierService(database)
        self._server = stack.enter_context(
            Server(StudyRegistry(lambda study: None), vizier_service=service)
        )
        self.endpoint = f'localhost:{self._server.port}'
        self._servicer = self
        self.datastore = Datastore(database)


SUITES: dict[str, list[type[unittest.TestCase]]] = {
    'clients': [clients_test.VizierClientTestOnDefaultServer],
    'vizier_client': [vizier_client_test.VizierClientTest],
    'servicer': [vizier_service_test.VizierServicerTest],
}


def cases(kind):
    """The tests of a suite, without those of another server."""
    left_out = [*_RANDOM_STOPS, *_LOCAL]
    loaded = unittest.defaultTestLoader
    for case in SUITES[kind]:
        for name in loaded.getTestCaseNames(case):
            if name not in left_out:
                yield case(name)


def main(kinds):
    vars(vizier_server).update(DefaultVizierServer=OurServer)
    vars(vizier_service).update(VizierServicer=Servicer)
    vizier_client.environment_variables.new_suggestion_polling_secs = 0.0
    suite = unittest.TestSuite(each for kind in kinds for each in cases(kind))
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(suite)
    broken = [str(case) for case, _ in result.failures + result.errors]
    print(json.dumps({'run': result.testsRun, 'skipped': len(result.skipped), 'broken': broken}))
    stack.close()
    sys.stdout.flush()
    os._exit(0)


if __name__ == '__main__':
    main(sys.argv[1:])
