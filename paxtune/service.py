"""Vizier's service inside this process, on one SQLite file, with paxtune's algorithms in it.

Nothing of Vizier's global state is used: its default service writes into site-packages. Importing
this module imports JAX (see `paxtune.pythia`).
"""

import urllib.parse
from pathlib import Path
from typing import Any

import sqlalchemy
from google.rpc import code_pb2, status_pb2
from vizier import pyvizier as vz
from vizier._src.service import (
    custom_errors,
    resources,
    sql_datastore,
    study_pb2,
    vizier_client,
    vizier_service,
    vizier_service_pb2,
)
from vizier.service import pyvizier as svz

from paxtune.pythia import Pythia
from trainer.errors import UserError

_OWNER = resources.OwnerResource('paxtune').name
_STUDY = resources.StudyResource('paxtune', 'study').name
_CLIENT = 'paxtune'


class SuggestionError(RuntimeError):
    """The algorithm raised. The message holds its traceback."""


class Service:
    """Vizier's service for the one study of a directory.

    Attributes:
        client: Vizier's client for that study.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        """Opens the database, which is made unless it is there.

        Args:
            path: the SQLite file.
            read_only: leave it as it is, as another process may be writing to it.

        Raises:
            UserError: the file is no database, or there is none to read.
        """
        pythia = Pythia()
        self._servicer = vizier_service.VizierServicer(None, default_pythia_service=pythia)
        pythia.vizier = self._servicer
        # Vizier's own engine cannot be closed, nor opened for reading only.
        self._engine = sqlalchemy.create_engine(
            _url(path, read_only),
            connect_args={'check_same_thread': False},
            poolclass=sqlalchemy.StaticPool,
        )
        try:
            store: Any = sql_datastore.SQLDataStore(self._engine)
        except sqlalchemy.exc.DatabaseError as error:
            self.close()
            raise UserError(f'{path} cannot be opened as a study: {error.orig}') from error
        self._servicer.datastore = store
        self.client = vizier_client.VizierClient(_STUDY, _CLIENT, self._servicer)

    def close(self) -> None:
        """Closes the database."""
        self._engine.dispose()

    def study_config(self) -> svz.StudyConfig | None:
        """The study's configuration; None if there is no study yet."""
        try:
            return self.client.get_study_config()
        except custom_errors.NotFoundError:
            return None

    def create_study(self, study_spec: study_pb2.StudySpec) -> None:
        """Makes the study, in one transaction."""
        study = study_pb2.Study(display_name='study', study_spec=study_spec)
        self._servicer.CreateStudy(
            vizier_service_pb2.CreateStudyRequest(parent=_OWNER, study=study)
        )

    def trials(self, known: set[int]) -> list[vz.Trial]:
        """The study's trials, by id, without those that are `known` already."""
        newest = self._servicer.datastore.max_trial_id(_STUDY)
        wanted = [number for number in range(1, newest + 1) if number not in known]
        # One by one costs more a trial, all at once costs the known ones, too.
        if len(wanted) > len(known):
            listed = [trial for trial in self.client.list_trials() if trial.id not in known]
            return sorted(listed, key=lambda trial: trial.id)
        return [self.client.get_trial(number) for number in wanted]

    def suggest(self) -> vz.Trial:
        """The trial that was handed out and not finished, else a new one.

        Raises:
            SuggestionError: the algorithm raised.
        """
        operation = self._suggest()
        if not operation.done:
            # Here a suggestion is made before the call returns. So this one was begun by a process
            # that died, and Vizier would have everybody wait for it.
            self._fail_unfinished()
            operation = self._suggest()
        if operation.HasField('error'):
            raise SuggestionError(operation.error.message)
        response = vizier_service_pb2.SuggestTrialsResponse.FromString(operation.response.value)
        return svz.TrialConverter.from_proto(response.trials[0])

    def _suggest(self) -> Any:
        request = vizier_service_pb2.SuggestTrialsRequest(
            parent=_STUDY, suggestion_count=1, client_id=_CLIENT
        )
        return self._servicer.SuggestTrials(request)

    def _fail_unfinished(self) -> None:
        store: Any = self._servicer.datastore
        for operation in store.list_suggestion_operations(_STUDY, _CLIENT, lambda op: not op.done):
            status = status_pb2.Status(code=code_pb2.Code.ABORTED, message='the process died')
            operation.error.CopyFrom(status)
            operation.done = True
            store.update_suggestion_operation(operation)


def _url(path: Path, read_only: bool) -> sqlalchemy.URL:
    if not read_only:
        return sqlalchemy.URL.create('sqlite', database=str(path))
    database = 'file:' + urllib.parse.quote(str(path.absolute()))
    return sqlalchemy.URL.create('sqlite', database=database, query={'mode': 'ro', 'uri': 'true'})
