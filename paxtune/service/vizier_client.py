"""gRPC client of a Vizier server that keeps a study: Vizier's own, or `paxtune.serve`."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc
from vizier._src.service import study_pb2, vizier_service_pb2_grpc
from vizier._src.service import vizier_service_pb2 as pb

from paxtune.service import schema
from paxtune.service.address import Service
from paxtune.service.connection import Connection, ServiceFailedError
from paxtune.storage.codec import StudySpec, TrialProto
from trainer.symbolic.errors import UserError

OWNER = 'paxtune-search'
"""Vizier's owner of these studies."""

FLAG = '--storage=vizier://'

_T = TypeVar('_T')

_MISSING = 'Failed to find', 'Could not get', 'does not exist'
"""Parts of messages of Vizier's server, which returns UNKNOWN for missing things."""


class MissingError(ServiceFailedError):
    """There is no such study or trial, or no study of the owner."""


class VizierClient(Connection):
    """Calls a Vizier server about one study. Thread-safe.

    Attributes:
        study_name: the study's name in Vizier, owners/OWNER/studies/STUDY.
    """

    def __init__(self, service: Service, patience: float = 120.0) -> None:
        """Prepares a client; the first call connects.

        Args:
            patience: seconds for which a call is repeated while there is no reply.

        Raises:
            UserError: the endpoint, the name of the study or the file of the authority is invalid.
        """
        try:
            self.study_name = f'owners/{OWNER}/studies/{schema.check_study(service.study)}'
        except schema.MalformedError as error:
            raise UserError(f'--study={service.study}: {error}') from None
        super().__init__(
            service.endpoint,
            service.token,
            tls=service.tls,
            ca_cert=service.tls_ca,
            timeout=30.0,
            patience=patience,
            flag=FLAG,
        )
        self._study = service.study
        self._stub = vizier_service_pb2_grpc.VizierServiceStub(self._channel)

    def _ask(self, seconds: float) -> None:
        self.study()

    def once(self, method: str, **fields: Any) -> Any:
        """Calls a method of Vizier once; raises `TransientError` where it may succeed later."""
        request = getattr(pb, f'{method}Request')(**fields)
        return self._send(getattr(self._stub, method), request, self._timeout)

    def repeat(self, attempt: Callable[[], _T]) -> _T:
        """Calls `attempt` until it raises no `TransientError`; ServiceUnavailableError at last."""
        return self._repeat(attempt, self._patience)

    def study(self) -> study_pb2.Study | None:
        """Reads the study once; None if there is none."""
        try:
            found: study_pb2.Study = self.once('GetStudy', name=self.study_name)
        except MissingError:
            return None
        return found

    def create_study(self, spec: StudySpec) -> study_pb2.Study:
        """Creates the study once, or returns the existing one."""
        study = study_pb2.Study(display_name=self._study, study_spec=spec, state='ACTIVE')
        study.create_time.GetCurrentTime()
        created: study_pb2.Study = self.once('CreateStudy', parent=f'owners/{OWNER}', study=study)
        return created

    def studies(self) -> list[study_pb2.Study]:
        """Lists the studies of `OWNER`."""
        try:
            return list(self.once('ListStudies', parent=f'owners/{OWNER}').studies)
        except MissingError:
            return []

    def trials(self) -> list[TrialProto]:
        """Reads all trials once."""
        return list(self.once('ListTrials', parent=self.study_name).trials)

    def trial_name(self, number: int) -> str:
        """Returns Vizier's name of a trial."""
        return f'{self.study_name}/trials/{number}'

    def write(self, metadata: Iterable[Any], trial: int | None = None) -> None:
        """Replaces items of metadata of the study, or of a trial, in one call that is repeated."""
        where = {} if trial is None else {'trial_id': str(trial)}
        delta = [pb.UnitMetadataUpdate(metadatum=item, **where) for item in metadata]
        reply = self.repeat(lambda: self.once('UpdateMetadata', name=self.study_name, delta=delta))
        if reply.error_details:
            raise ServiceFailedError(f'{self.study_name} cannot be written: {reply.error_details}')

    def _translated(self, error: Any) -> Exception:
        code, details = error.code(), error.details() or ''
        is_raised = code is grpc.StatusCode.UNKNOWN and 'calling application' in details
        if code is grpc.StatusCode.NOT_FOUND or (is_raised and any(m in details for m in _MISSING)):
            return MissingError(details)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return UserError(f'{self.flag}: no Vizier server answers: {details}')
        if is_raised:
            return ServiceFailedError(f'the server at {self.endpoint} has failed: {details}')
        return super()._translated(error)
