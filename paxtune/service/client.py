"""gRPC client of the service."""

import functools
import logging
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import msgspec
import tenacity
from grpc_health.v1 import health_pb2

from paxtune.service import auth, schema, tokens
from paxtune.study.transitions import DetachedError
from trainer.symbolic.errors import UnavailableError, UserError

_LOG = logging.getLogger(__name__)
_T = TypeVar('_T')

_TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    # Codes of calls that run while the service stops or the connection breaks.
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
)

_ADVICE = {
    'CERTIFICATE_VERIFY_FAILED': "the service's certificate is not trusted. Give --tls_ca with the "
    'certificate of the authority that signed it',
    'Hostname Verification': 'the certificate of the service is for another host',
    'WRONG_VERSION_NUMBER': 'the service does not use TLS: remove --tls and --tls_ca',
    'http1.x server': 'there is an HTTP/1 server, and no paxtune service',
}
"""Advice for permanent errors, by a part of gRPC's message."""

_OPTIONS = [
    ('grpc.max_send_message_length', schema.MAX_BYTES),
    ('grpc.max_receive_message_length', 2 * schema.MAX_BYTES),
    # Reconnect soon after the service is back.
    ('grpc.initial_reconnect_backoff_ms', 100),
    ('grpc.min_reconnect_backoff_ms', 5_000),  # The time limit of one attempt to connect.
    ('grpc.max_reconnect_backoff_ms', 1_000),
    ('grpc.dns_min_time_between_resolutions_ms', 1_000),
    # gRPC's own policy ends after five attempts; `Client` repeats calls, and logs it.
    ('grpc.enable_retries', 0),
    # The service is inside the network; a proxy leads out of it.
    ('grpc.enable_http_proxy', 0),
    ('grpc.use_local_subchannel_pool', 1),
    # Detect a lost machine.
    ('grpc.keepalive_time_ms', 20_000),
    ('grpc.keepalive_timeout_ms', 10_000),
]


class ServiceUnavailableError(DetachedError):
    """The service did not reply in time."""


class ServiceFailedError(DetachedError):
    """The service has failed at a call, or its reply is invalid. Its log has the reason."""


class _TransientError(Exception):
    """The call may succeed later."""


class Client:
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
            token: None for that of this user's service at a port of this machine.
            tls: use TLS, with a certificate that a public authority has signed.
            ca_cert: use TLS, with a certificate that the authority in this file has signed.
            timeout: seconds that a reply may take.
            patience: seconds for which a call is repeated while there is no reply, so that
                workers survive a restart of the service.

        Raises:
            UserError: the endpoint or the file is invalid, or the token would go without TLS.
            schema.MalformedError: the study's name is invalid.
        """
        host = auth.check_endpoint(endpoint)
        self.endpoint, self.study = endpoint, schema.check_study(study)
        self._timeout, self._patience = timeout, patience
        self._closed = threading.Event()
        self._again = functools.partial(
            Client, endpoint, study, token, tls=tls, ca_cert=ca_cert, patience=patience
        )
        if token is None and auth.is_loopback(host):
            token = tokens.local_secret(int(endpoint.rpartition(':')[2]))
        self._metadata = [] if token is None else [('authorization', tokens.header(token))]
        target = f'dns:///{endpoint}'
        if tls or ca_cert is not None:
            roots = None if ca_cert is None else auth.authority(ca_cert)
            credentials = grpc.ssl_channel_credentials(roots)
            self._channel = grpc.secure_channel(target, credentials, options=_OPTIONS)
        else:
            if token is not None and not auth.is_loopback(host):
                why = 'without TLS the token could be intercepted: give --tls or --tls_ca'
                raise UserError(f'--vizier_endpoint={endpoint}: {why}')
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
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

    def connect(self, patience: float = 10.0) -> None:
        """Waits for the service to be ready; UnavailableError after `patience` seconds."""
        request = health_pb2.HealthCheckRequest(service=schema.SERVICE)

        def check() -> None:
            reply = self._send(self._check_health, request, min(self._timeout, patience))
            if reply.status != health_pb2.HealthCheckResponse.SERVING:
                raise _TransientError('it is stopping, or its database is unavailable')

        try:
            self._repeat(check, patience)
        except ServiceUnavailableError as error:
            raise UnavailableError(f'--vizier_endpoint={self.endpoint}: {error}') from error

    def another(self, timeout: float) -> 'Client':
        """Makes a client with a connection of its own, whose replies may take some seconds."""
        return self._again(timeout=timeout)

    def close(self) -> None:
        """Closes the connection; pending calls of other threads fail."""
        self._closed.set()
        self._channel.close()

    def __enter__(self) -> 'Client':
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _repeat(self, attempt: Callable[[], _T], patience: float) -> _T:
        """Calls `attempt` until it raises no `_TransientError`."""

        def log_first(state: tenacity.RetryCallState) -> None:
            if state.attempt_number == 1 and state.outcome is not None:
                _LOG.warning(
                    'the service at %s does not answer: %s. Trying again for %.0f s',
                    self.endpoint,
                    state.outcome.exception(),
                    patience,
                )

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TransientError),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
            stop=tenacity.stop_after_delay(patience) | tenacity.stop_when_event_set(self._closed),
            sleep=tenacity.sleep_using_event(self._closed),
            before_sleep=log_first,
            reraise=True,
        )
        try:
            return retrying(attempt)
        except _TransientError as error:
            if self._closed.is_set():
                raise self._closed_error() from error
            raise ServiceUnavailableError(
                f'the service at {self.endpoint} did not answer for {patience:g} s: {error}'
            ) from error

    def _send(self, method: Any, message: Any, timeout: float) -> Any:
        try:
            return method(message, timeout=timeout, metadata=self._metadata)
        except ValueError as error:  # Another thread has closed the channel.
            raise self._closed_error() from error
        except grpc.RpcError as error:
            raise self._translated(error) from error

    def _closed_error(self) -> ServiceUnavailableError:
        return ServiceUnavailableError(f'the connection to {self.endpoint} was closed')

    def _translated(self, error: Any) -> Exception:
        code, details = error.code(), error.details() or ''
        rejected = dict(error.trailing_metadata() or ()).get(schema.REJECTED)
        if rejected is not None:
            return schema.RequestRejectedError(str(rejected), details)
        flag = f'--vizier_endpoint={self.endpoint}'
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return UserError(
                f'{flag}: the service was given {details}: give '
                f"--token_file with the service's token, or {tokens.VARIABLE}"
            )
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return UserError(f'{flag}: {details}')
        if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
            return UserError(
                f'{flag}: there is no paxtune service of this version: {code.name}: {details}'
            )
        for sign, advice in _ADVICE.items():
            if sign in details:
                return UserError(f'{flag}: {advice} ({details})')
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return schema.RequestRejectedError('invalid', details)
        if code in _TRANSIENT or 'RST_STREAM' in details:
            return _TransientError(f'{code.name}: {details}')
        return ServiceFailedError(
            f'the service at {self.endpoint} has failed: {code.name}: {details}. Its log says why.'
        )
