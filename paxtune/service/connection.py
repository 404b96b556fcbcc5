"""A gRPC connection to a service, whose calls are repeated while there is no reply."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import tenacity

from paxtune.service import auth, schema, tokens
from paxtune.study.transitions import DetachedError
from trainer.symbolic.errors import UnavailableError, UserError

_LOG = logging.getLogger(__name__)
_T = TypeVar('_T')

TRANSIENT = (
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
    # gRPC's own policy ends after five attempts; `Connection` repeats calls, and logs it.
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


class TransientError(Exception):
    """The call may succeed later."""


class Connection:
    """Calls a service. Thread-safe.

    A subclass knows the methods, and overrides `_ask` and `_translated`.

    Attributes:
        endpoint: host:port of the service.
        flag: the command-line flag with the endpoint, for messages.
    """

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        *,
        tls: bool,
        ca_cert: Path | None,
        timeout: float,
        patience: float,
        flag: str = '--vizier_endpoint=',
    ) -> None:
        """Prepares a connection: see `paxtune.service.client.Client`."""
        host = auth.check_endpoint(endpoint, flag)
        self.endpoint, self.flag = endpoint, f'{flag}{endpoint}'
        self._timeout, self._patience = timeout, patience
        self._closed = threading.Event()
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
                raise UserError(f'{self.flag}: {why}')
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)

    def connect(self, patience: float = 10.0) -> None:
        """Waits for the service to be ready; UnavailableError after `patience` seconds."""
        try:
            self._repeat(lambda: self._ask(min(self._timeout, patience)), patience)
        except ServiceUnavailableError as error:
            raise UnavailableError(f'{self.flag}: {error}') from error

    def _ask(self, seconds: float) -> None:
        """Asks if the service is ready; raises `TransientError` while it is not."""
        raise NotImplementedError(type(self).__name__)

    def close(self) -> None:
        """Closes the connection; pending calls of other threads fail."""
        self._closed.set()
        self._channel.close()

    def _repeat(self, attempt: Callable[[], _T], patience: float) -> _T:
        """Calls `attempt` until it raises no `TransientError`."""

        def log_first(state: tenacity.RetryCallState) -> None:
            if state.attempt_number == 1 and state.outcome is not None:
                _LOG.warning(
                    'the service at %s does not answer: %s. Trying again for %.0f s',
                    self.endpoint,
                    state.outcome.exception(),
                    patience,
                )

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TransientError),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
            stop=tenacity.stop_after_delay(patience) | tenacity.stop_when_event_set(self._closed),
            sleep=tenacity.sleep_using_event(self._closed),
            before_sleep=log_first,
            reraise=True,
        )
        try:
            return retrying(attempt)
        except TransientError as error:
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
        return ServiceUnavailableError(f'the connection to {self.endpoint} is closed')

    def _translated(self, error: Any) -> Exception:
        """Translates an error of gRPC into ours: a `TransientError` repeats the call."""
        code, details = error.code(), error.details() or ''
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return UserError(
                f'{self.flag}: the service was given {details}: give '
                f"--token_file with the service's token, or {tokens.VARIABLE}"
            )
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return UserError(f'{self.flag}: {details}')
        for sign, advice in _ADVICE.items():
            if sign in details:
                return UserError(f'{self.flag}: {advice} ({details})')
        if code in TRANSIENT or 'RST_STREAM' in details:
            return TransientError(f'{code.name}: {details}')
        return ServiceFailedError(
            f'the service at {self.endpoint} has failed: {code.name}: {details}. Its log says why.'
        )
