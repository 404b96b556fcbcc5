"""gRPC client of the service."""

import functools
import uuid
from pathlib import Path
from typing import Any

import grpc
import msgspec
from grpc_health.v1 import health_pb2

from paxtune.service import schema
from paxtune.service.connection import Connection, ServiceFailedError, TransientError
from trainer.symbolic.errors import UserError


class Client(Connection):
    """Calls a service about one study. Thread-safe."""

    def __init__(
        self,
        endpoint: str,
        study: str,
        token: str | None = None,
        *,
        tls: bool = False,
        ca_cert: Path | None = None,
        timeout: float = 30.0,
        patience: float = 120.0,
    ) -> None:
        """Prepares a client. The first call connects.

        Args:
            endpoint: host:port of the service.
            token: None for the token of this user's service at a port of this machine.
            tls: use TLS, with a certificate that a public authority has signed.
            ca_cert: use TLS, with a certificate that the authority in this file has signed.
            timeout: seconds that a reply may take.
            patience: seconds for which a call is repeated while there is no reply, so that
                workers survive a restart of the service.

        Raises:
            UserError: the endpoint or the file is invalid, or the token would go without TLS.
            schema.MalformedError: the study's name is invalid.
        """
        self.study = schema.check_study(study)
        super().__init__(
            endpoint, token, tls=tls, ca_cert=ca_cert, timeout=timeout, patience=patience
        )
        self._again = functools.partial(
            Client, endpoint, study, token, tls=tls, ca_cert=ca_cert, patience=patience
        )
        self._methods = {
            name: self._channel.unary_unary(schema.path(name)) for name in schema.METHODS
        }
        self._check_health = self._channel.unary_unary(
            '/grpc.health.v1.Health/Check',
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )

    def call(self, request: schema.Request[schema.Reply]) -> schema.Reply:
        """Sends a request about the study; repeats it while the service is unavailable.

        Repeated requests are equal to the byte: the service recognizes a `Write` by its
        `request_id`, which is drawn here if it is ''. The study is set here, too.

        Raises:
            schema.RequestRejectedError: the service rejects the request.
            schema.MalformedError: the request cannot be encoded.
            ServiceUnavailableError: the service did not reply in time, or the client was closed.
            ServiceFailedError: the service has failed.
            UserError: the token is wrong or does not suffice, or there is no paxtune service.
        """
        method = schema.NAMES[type(request)]
        values = {'study': self.study}
        if isinstance(request, schema.Write):
            values['request_id'] = request.request_id or uuid.uuid4().hex
        data = schema.encode(msgspec.structs.replace(request, **values))
        reply = self._repeat(
            lambda: self._send(self._methods[method], data, self._timeout), self._patience
        )
        try:
            return schema.decode(schema.METHODS[method].reply, reply)
        except schema.MalformedError as error:
            raise ServiceFailedError(
                f'{self.endpoint} returned an invalid reply to {method}: {error}. '
                'Is it another version of paxtune?'
            ) from error

    def _ask(self, seconds: float) -> None:
        request = health_pb2.HealthCheckRequest(service=schema.SERVICE)
        reply = self._send(self._check_health, request, seconds)
        if reply.status != health_pb2.HealthCheckResponse.SERVING:
            raise TransientError('it is stopping, or its database is unavailable')

    def another(self, timeout: float) -> 'Client':
        """Makes a client with a connection of its own, whose replies may take some seconds."""
        return self._again(timeout=timeout)

    def __enter__(self) -> 'Client':
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _translated(self, error: Any) -> Exception:
        code, details = error.code(), error.details() or ''
        rejected = dict(error.trailing_metadata() or ()).get(schema.REJECTED)
        if rejected is not None:
            return schema.RequestRejectedError(str(rejected), details)
        if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
            return UserError(
                f'{self.flag}: no paxtune service of this version: {code.name}: {details}'
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return schema.RequestRejectedError('invalid', details)
        return super()._translated(error)
