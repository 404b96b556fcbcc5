"""The channel from a worker to the service."""

import logging
import random
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from paxtune.service import auth, schema
from paxtune.study.trial_state import DetachedError
from trainer.symbolic.errors import UserError

_LOG = logging.getLogger(__name__)

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0

_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    # What calls end with that run while the service ends, or whose connection breaks.
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
)

_OPTIONS = [
    ('grpc.max_send_message_length', schema.MAX_BYTES),
    ('grpc.max_receive_message_length', 2 * schema.MAX_BYTES),
    # A service that is there again is found again at once.
    ('grpc.initial_reconnect_backoff_ms', 100),
    ('grpc.min_reconnect_backoff_ms', 5_000),  # This is for how long a connection is waited for.
    ('grpc.max_reconnect_backoff_ms', 1_000),
    ('grpc.dns_min_time_between_resolutions_ms', 1_000),
    # What was sent in vain is sent again here, where it is logged.
    ('grpc.enable_retries', 0),
    # A service is inside the network; a proxy is the way out of it.
    ('grpc.enable_http_proxy', 0),
    ('grpc.use_local_subchannel_pool', 1),
    # A service that is gone without a word is noticed.
    ('grpc.keepalive_time_ms', 20_000),
    ('grpc.keepalive_timeout_ms', 10_000),
]


class ServiceUnavailableError(DetachedError):
    """The service did not answer for as long as it was waited for."""


class ServiceFailedError(DetachedError):
    """The service has failed at a call, or answered what makes no sense. Its log says why."""


class Client:
    """Calls a service about one study. Many threads may use it.

    Attributes:
        endpoint: where the service is, host:port.
        study: which study.
    """

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
        """Prepares to call. The connection is made by the first call.

        Args:
            endpoint: where the service is, host:port.
            study: which study.
            token: what the service wants to know of who calls.
            tls: speak TLS with a service whose certificate a public authority has signed.
            ca_cert: speak TLS with a service that the authority in this file has signed.
            timeout: how many seconds the service may take for an answer.
            patience: for how many seconds a call is repeated while there is none: a service that
                starts again must not end its workers.

        Raises:
            UserError: the endpoint or the file is not one.
            schema.MalformedError: no study can have that name.
        """
        host = auth.check_endpoint(endpoint)
        self.endpoint, self.study = endpoint, schema.check_study(study)
        self._timeout, self._patience = timeout, patience
        self._closed = threading.Event()
        self._metadata = [] if token is None else [('authorization', auth.header(token))]
        target = f'dns:///{endpoint}'
        if tls or ca_cert is not None:
            roots = None if ca_cert is None else auth.authority(ca_cert)
            credentials = grpc.ssl_channel_credentials(roots)
            self._channel = grpc.secure_channel(target, credentials, options=_OPTIONS)
        else:
            if token is not None and not auth.is_loopback(host):
                _LOG.warning('the token goes to %s without TLS: who listens can read it', endpoint)
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        # Messages are bytes: what they mean is up to `schema`.
        self._methods = {
            name: self._channel.unary_unary(schema.path(name)) for name in schema.METHODS
        }
        self._check_health = self._channel.unary_unary(
            '/grpc.health.v1.Health/Check',
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )

    def call(self, method: str, /, **fields: Any) -> dict[str, Any]:
        """Calls a method of the study's hub; again and again while the service is away.

        A call that is repeated is the same to the byte: by its `request` the service knows whether
        it has done it already. One is drawn where the method takes one and none is given.

        Args:
            method: one of `schema.METHODS`.
            **fields: what the method takes.

        Returns:
            What the method answers.

        Raises:
            schema.RequestRejectedError: the service will not do it.
            schema.MalformedError: the method does not take such fields.
            ServiceUnavailableError: the service was away for too long, or this was closed.
            ServiceFailedError: the service has failed.
            UserError: the token is not the right one, or there is no paxtune service.
        """
        if 'request' in schema.METHODS[method].request:
            fields.setdefault('request', uuid.uuid4().hex)
        data = schema.encode_request(method, self.study, fields)
        for last in self._attempts(self._patience):
            try:
                answer = self._send(self._methods[method], data, self._timeout)
            except grpc.RpcError as error:
                last.append(self._passing(error))
                continue
            try:
                return schema.decode_reply(method, answer)
            except schema.MalformedError as error:
                raise ServiceFailedError(
                    f'{self.endpoint} answers {method} with what is none of its answers: {error}. '
                    'Is it of another version of paxtune?'
                ) from error
        raise AssertionError

    def connect(self, patience: float = 10.0) -> None:
        """Waits until there is a service that serves.

        Args:
            patience: for how many seconds.

        Raises:
            UserError: there is none.
        """
        asked = health_pb2.HealthCheckRequest(service=schema.SERVICE)
        try:
            for last in self._attempts(patience):
                try:
                    answer = self._send(self._check_health, asked, min(self._timeout, patience))
                except grpc.RpcError as error:
                    last.append(self._passing(error))
                    continue
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
                last.append('it does not serve now: it is ending, or cannot reach its database')
        except ServiceUnavailableError as error:
            raise UserError(f'--vizier_endpoint={self.endpoint}: {error}') from error

    def close(self) -> None:
        """Ends the connection; calls that other threads wait for fail."""
        self._closed.set()
        self._channel.close()

    def __enter__(self) -> 'Client':
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _send(self, method: Any, message: Any, timeout: float) -> Any:
        try:
            return method(message, timeout=timeout, metadata=self._metadata)
        except ValueError as error:
            # What gRPC says of a channel that another thread has closed.
            raise self._was_closed() from error

    def _attempts(self, patience: float) -> Iterator[list[str]]:
        """Yields once for each time to try, a list for why it was in vain."""
        end, wait = time.monotonic() + patience, _FIRST_WAIT
        failures: list[str] = []
        while not self._closed.is_set():
            yield failures
            left = end - time.monotonic()
            if left <= 0:
                raise ServiceUnavailableError(
                    f'the service at {self.endpoint} did not answer for {patience:g} s: '
                    f'{failures[-1]}'
                )
            if len(failures) == 1 and not self._closed.is_set():
                _LOG.warning(
                    'the service at %s does not answer: %s. Trying again for %.0f s',
                    self.endpoint,
                    failures[0],
                    left,
                )
            # Not all workers at the same moment.
            self._closed.wait(min(left, wait * random.uniform(0.5, 1.0)))
            wait = min(2 * wait, _LONGEST_WAIT)
        raise self._was_closed()

    def _was_closed(self) -> ServiceUnavailableError:
        return ServiceUnavailableError(f'the connection to {self.endpoint} was closed')

    def _passing(self, error: Any) -> str:
        """Why a call has failed that may do better later. Raises what will not."""
        code, details = error.code(), error.details() or ''
        refusal = dict(error.trailing_metadata() or ()).get(schema.REJECTED)
        if refusal is not None:
            raise schema.RequestRejectedError(str(refusal), details) from error
        if code is grpc.StatusCode.UNAUTHENTICATED:
            raise UserError(
                f'--vizier_endpoint={self.endpoint}: the service was given {details}: give '
                f"--token_file with the service's token, or {auth.TOKEN_VARIABLE}"
            ) from error
        if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
            raise UserError(
                f'--vizier_endpoint={self.endpoint}: no paxtune service of this version is there: '
                f'{code.name}: {details}'
            ) from error
        for sign, advice in _WRONG.items():
            if sign in details:
                raise UserError(
                    f'--vizier_endpoint={self.endpoint}: {advice} ({details})'
                ) from error
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise schema.RequestRejectedError('invalid', details) from error
        if code in _PASSING or 'RST_STREAM' in details:
            return f'{code.name}: {details}'
        raise ServiceFailedError(
            f'the service at {self.endpoint} has failed: {code.name}: {details}. Its log says why.'
        ) from error


_WRONG = {
    'CERTIFICATE_VERIFY_FAILED': 'the certificate of the service is not to be trusted. Give '
    '--tls_ca with the certificate of who has signed it',
    'Hostname Verification': 'the certificate of the service is not for this host',
    'WRONG_VERSION_NUMBER': 'the service does not speak TLS: leave --tls and --tls_ca out',
    'http1.x server': 'no paxtune service is there, but one that speaks HTTP/1',
}
"""What stands in gRPC's messages of what will not pass, and what it means."""
