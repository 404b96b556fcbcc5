"""gRPC server: authenticates, decodes, calls the coordinator of the study, encodes."""

import concurrent.futures
import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from paxtune.service import auth, monitoring, schema
from paxtune.storage.database import DatabaseUnavailableError
from trainer.symbolic.errors import UserError, is_disk_full

_LOG = logging.getLogger(__name__)

_HEALTH = f'/{health.SERVICE_NAME}/'
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

_CODES = {
    'fenced': grpc.StatusCode.FAILED_PRECONDITION,
    'missing': grpc.StatusCode.NOT_FOUND,
    'conflict': grpc.StatusCode.ABORTED,
    'invalid': grpc.StatusCode.INVALID_ARGUMENT,
}

_LEVELS = {
    grpc.StatusCode.INTERNAL: logging.ERROR,
    # Races between workers.
    grpc.StatusCode.ABORTED: logging.DEBUG,
    grpc.StatusCode.NOT_FOUND: logging.DEBUG,
}

_CHECK_SECONDS = 1.0
_THREADS = 32
_BURST = 20.0
_SILENT_SECONDS = 2.0
_MAX_SILENT = 3

_OPTIONS = [
    # Otherwise a second server could take half of the calls to the port of the first.
    ('grpc.so_reuseport', 0),
    ('grpc.max_concurrent_streams', 100),
    # Detect a lost machine.
    ('grpc.keepalive_time_ms', 20_000),
    ('grpc.keepalive_timeout_ms', 10_000),
    ('grpc.keepalive_permit_without_calls', 1),
    ('grpc.http2.min_recv_ping_interval_without_data_ms', 5_000),
]


class Server:
    """Serves studies at a port, from `start` to `stop`.

    Example:
        >>> with Server(lambda study: None) as server:
        ...     server.port > 0
        True
    """

    def __init__(
        self,
        registry: Callable[[str], Any],
        host: str = '127.0.0.1',
        port: int = 0,
        *,
        token: str | None = None,
        tls: tuple[Path, Path] | None = None,
        is_ready: Callable[[], object] = lambda: None,
        metrics: monitoring.Metrics | None = None,
        max_bytes: int = schema.MAX_BYTES,
    ) -> None:
        """Prepares a server.

        Args:
            registry: returns the coordinator of a study, which has the methods of `schema.METHODS`.
            port: 0 for any free port.
            token: authenticates a caller; None accepts every caller.
            tls: the files of the certificate and of its key.
            is_ready: raises DatabaseUnavailableError if the database is unavailable; called every
                second, for health checks, and to show coordinators that this process runs.
            max_bytes: size limit of a request.
        """
        self._registry, self._host, self._asked_port = registry, host, port
        self._token, self._tls, self._is_ready = token, tls, is_ready
        self._metrics = metrics or monitoring.Metrics()
        self._max_bytes = max_bytes
        self._log = _BoundedLog()
        self._stopping = threading.Event()
        self._silent: dict[grpc.ServicerContext, float] = {}
        self.port = 0

    def start(self) -> None:
        """Starts to serve; raises UserError for a port or certificate of no use."""
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, 'service')
        options = [*_OPTIONS, ('grpc.max_receive_message_length', self._max_bytes)]
        self._server = grpc.server(self._pool, [_Methods(self._answer)], options=options)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.port = self._bind()
        self._report(_SERVING)
        self._server.start()
        watches = (self._watch_database, self._end_silent)
        self._watches = [threading.Thread(target=watch, daemon=True) for watch in watches]
        for watch in self._watches:
            watch.start()

    def stop(self, seconds: float = 10.0) -> None:
        """Accepts no more calls, waits for the running ones, and stops.

        Args:
            seconds: the time after which running calls are aborted. A write that has started is
                always finished.
        """
        self._stopping.set()
        self._health.enter_graceful_shutdown()
        self._server.stop(seconds).wait()
        self._pool.shutdown()
        for watch in self._watches:  # The first may wait for a database that does not answer.
            watch.join(_CHECK_SECONDS)

    def __enter__(self) -> 'Server':
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _bind(self) -> int:
        address = auth.address(self._host, self._asked_port)
        credentials = None
        if self._tls is not None:
            certificate, key = auth.certificate(*self._tls)
            credentials = grpc.ssl_server_credentials([(key, certificate)])
        try:
            self._try_address()
            if credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except (OSError, RuntimeError) as error:
            self._server.stop(None)
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f'--port={self._asked_port}: {address} is unavailable: {reason}. Use another '
                '--port, or another --host.'
            ) from error

    def _try_address(self) -> None:
        """Raises OSError with the reason, which gRPC only prints."""
        found = socket.getaddrinfo(
            self._host, self._asked_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)

    def _watch_database(self) -> None:
        while not self._stopping.wait(_CHECK_SECONDS):
            try:
                self._is_ready()
                self._report(_SERVING)
            except (DatabaseUnavailableError, UserError) as error:
                self._log.write('database', logging.ERROR, f'the database: {error}')
                self._report(_NOT_SERVING)

    def _end_silent(self) -> None:
        while not self._stopping.wait(_SILENT_SECONDS / 4):
            for context, since in list(self._silent.items()):
                if time.monotonic() - since > _SILENT_SECONDS:
                    context.cancel()

    def _report(self, status: int) -> None:
        for service in ('', schema.SERVICE):
            self._health.set(service, status)

    def _answer(self, path: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        started, peer = time.perf_counter(), context.peer()
        method = path.removeprefix(f'/{schema.SERVICE}/')
        method = method if method in schema.METHODS else ''
        code = grpc.StatusCode.OK
        try:
            return self._reply(method, path, requests, context)
        except Exception as error:
            code, message, rejection = _status(error)
            what = f'{schema.shortened(method or path)} of {peer}: {code.name}: {error}'
            trace = error if code is grpc.StatusCode.INTERNAL else None
            self._log.write(code, _LEVELS.get(code, logging.WARNING), what, trace)
            if isinstance(error, DatabaseUnavailableError):
                self._report(_NOT_SERVING)
        finally:
            self._metrics.count(method or 'unknown', code.name, time.perf_counter() - started)
        if rejection:
            context.set_trailing_metadata(((schema.REJECTED, rejection),))
        context.abort(code, message)
        raise AssertionError('abort raises')

    def _reply(
        self, method: str, path: str, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> bytes:
        # The token is checked before the request is read.
        given = [value for key, value in context.invocation_metadata() if key == 'authorization']
        if not auth.is_authorized(given, self._token):
            what = 'a wrong token' if given else 'no token'
            raise _StatusError(grpc.StatusCode.UNAUTHENTICATED, what)
        if not method:
            raise _StatusError(
                grpc.StatusCode.UNIMPLEMENTED, f'there is no method {schema.shortened(path)}'
            )
        request = schema.decode(schema.METHODS[method].request, self._first(requests, context))
        fields = msgspec.structs.asdict(request)
        coordinator = self._registry(fields.pop('study'))
        return schema.encode(getattr(coordinator, method)(**fields))

    def _first(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        # Each waiting call takes a thread, which others need.
        peer = context.peer()
        if sum(each.peer() == peer for each in list(self._silent)) >= _MAX_SILENT:
            raise _StatusError(grpc.StatusCode.UNAVAILABLE, 'too many calls without a message')
        self._silent[context] = time.monotonic()
        # A second message is not waited for, which would take as long as the first.
        try:
            return next(requests, b'')
        except grpc.RpcError as error:  # gRPC has replied already.
            reason = f'late, longer than {self._max_bytes} bytes, or cancelled by the caller'
            raise _StatusError(grpc.StatusCode.CANCELLED, reason) from error
        finally:
            del self._silent[context]


class _StatusError(Exception):
    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def _status(error: Exception) -> tuple[grpc.StatusCode, str, str]:
    """Returns the code, the message and the `schema.REJECTED` of a failed call."""
    match error:
        case _StatusError():
            return error.code, str(error), ''
        case schema.MalformedError():
            return grpc.StatusCode.INVALID_ARGUMENT, str(error), 'invalid'
        case schema.RequestRejectedError():
            return _CODES[error.code], str(error), error.code
        case DatabaseUnavailableError():
            full = ': the disk is full' if is_disk_full(error) else ''
            return grpc.StatusCode.UNAVAILABLE, f'the database is unavailable{full}', ''
    # The message of an unexpected error may contain secrets.
    return grpc.StatusCode.INTERNAL, type(error).__name__, ''


class _Methods(grpc.GenericRpcHandler):
    """Passes every call to one function, which logs unknown methods too."""

    def __init__(self, answer: Callable[[str, Iterator[bytes], Any], bytes]) -> None:
        self._answer = answer

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        path = details.method
        if path.startswith(_HEALTH):
            return None
        # A stream, though one message is expected: this allows to reject a caller before the
        # message is read, and to log a message that is too long.
        return grpc.stream_unary_rpc_method_handler(functools.partial(self._answer, path))


class _BoundedLog:
    """Writes a burst of lines of each kind, and then one a second.

    Otherwise callers could fill the disk with lines that hide the important ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[object, tuple[float, float, int]] = {}

    def write(self, kind: object, level: int, message: str, trace: Exception | None = None) -> None:
        with self._lock:
            now = time.monotonic()
            left, last, suppressed = self._kinds.get(kind, (_BURST, now, 0))
            left = min(_BURST, left + now - last)
            if left < 1:
                self._kinds[kind] = left, now, suppressed + 1
                return
            self._kinds[kind] = left - 1, now, 0
        if suppressed:
            message = f'({suppressed} lines like this were suppressed) {message}'
        _LOG.log(level, '%s', message, exc_info=trace)
