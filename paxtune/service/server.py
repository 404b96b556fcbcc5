"""gRPC server: receives messages, and passes them to `Calls` in threads.

A call takes a thread only once its message has arrived: silent callers delay no other.
"""

import asyncio
import concurrent.futures
import functools
import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from paxtune.service import auth, monitoring, schema
from paxtune.service.calls import CallError, Calls, is_of_vizier
from paxtune.service.tokens import Token
from paxtune.storage.database import DatabaseUnavailableError
from paxtune.vizier_service.service import WAITING, VizierService
from trainer.symbolic.errors import UserError

_HEALTH = f'/{health.SERVICE_NAME}/Check'

CHECK_SECONDS = 1.0
_SILENT_SECONDS = 2.0
_MAX_SILENT = 500
_THREADS = 32
_THREADS_PER_CONNECTION = 2

_OPTIONS = [
    # Otherwise a second server could take half of the calls to the port of the first.
    ('grpc.so_reuseport', 0),
    # Calls of one connection; further ones wait at its client. A call that has ended counts until
    # its memory is free. gRPC refuses more than these, and a Vizier client does not repeat a call.
    ('grpc.max_concurrent_streams', 300),
    # Detect a lost machine.
    ('grpc.keepalive_time_ms', 20_000),
    ('grpc.keepalive_timeout_ms', 10_000),
    ('grpc.keepalive_permit_without_calls', 1),
    ('grpc.http2.min_recv_ping_interval_without_data_ms', 5_000),
]

_T = TypeVar('_T')


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
        tokens: Sequence[Token] = (),
        tls: tuple[Path, Path] | None = None,
        is_ready: Callable[[], object] = lambda: None,
        metrics: monitoring.Metrics | None = None,
        vizier_service: VizierService | None = None,
        max_bytes: int = schema.MAX_BYTES,
    ) -> None:
        """Prepares a server.

        Args:
            registry: returns the coordinator of a study, which has the methods of `schema.METHODS`.
            port: 0 for any free port.
            tokens: rights of callers; every caller may do everything if there are none.
            tls: the files of the certificate and of its key.
            is_ready: raises DatabaseUnavailableError if the database is unavailable; called every
                second, for health checks, and to show coordinators that this process runs.
            vizier_service: answers calls of Vizier's clients, too.
            max_bytes: size limit of a request.
        """
        self._calls = Calls(registry, tokens, metrics, vizier_service)
        self._vizier = vizier_service
        self._host, self._asked_port = host, port
        self._tls, self._is_ready, self._max_bytes = tls, is_ready, max_bytes
        self._stopping = threading.Event()
        self._is_serving = False
        # The calls without a message, the oldest first.
        self._silent: dict[asyncio.Timeout, None] = {}
        self._turns: weakref.WeakValueDictionary[str, asyncio.Semaphore]
        self._turns = weakref.WeakValueDictionary()
        self.port = 0

    def start(self) -> None:
        """Starts to serve; raises UserError for a port or certificate of no use."""
        # Suggestions take seconds. They delay no heartbeat, and no call about another trial.
        self._pools = {
            name: concurrent.futures.ThreadPoolExecutor(_THREADS, name)
            for name in ('service', 'vizier', 'suggestions')
        }
        self._loop = asyncio.new_event_loop()
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._loop.run_forever, self._watch_database)
        ]
        self._threads[0].start()
        try:
            self.port = self._run(self._open())
        except BaseException:
            self._end_loop()
            raise
        self._threads[1].start()

    def stop(self, seconds: float = 10.0) -> None:
        """Accepts no more calls, waits for the running ones, and stops.

        Args:
            seconds: the time after which running calls are aborted. A write that has started is
                always finished.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._is_serving = False
        if self._vizier is not None:
            self._vizier.stop()
        self._run(self._server.stop(seconds))
        for pool in self._pools.values():
            pool.shutdown()
        self._end_loop()
        self._threads[1].join(CHECK_SECONDS)  # It may wait for a database that does not answer.

    def __enter__(self) -> 'Server':
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()
        self._loop.close()

    async def _open(self) -> int:
        options = [*_OPTIONS, ('grpc.max_receive_message_length', self._max_bytes)]
        self._server = grpc.aio.server(handlers=[_Methods(self._answer)], options=options)
        address = auth.address(self._host, self._asked_port)
        credentials = None
        if self._tls is not None:
            certificate, key = auth.certificate(*self._tls)
            credentials = grpc.ssl_server_credentials([(key, certificate)])
        try:
            self._try_address()
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f'--port={self._asked_port}: {address} is unavailable: {reason}. Use another '
                '--port, or another --host.'
            ) from error
        self._is_serving = True
        await self._server.start()
        return int(port)

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
        while not self._stopping.wait(CHECK_SECONDS):
            try:
                self._is_ready()
                self._is_serving = not self._stopping.is_set()
            except (DatabaseUnavailableError, UserError) as error:
                self._calls.log.write('database', logging.ERROR, f'the database: {error}')
                self._is_serving = False

    async def _answer(self, path: str, _: object, context: Any) -> bytes:
        try:
            return await self._reply(path, context)
        except CallError as error:
            if isinstance(error.__cause__, DatabaseUnavailableError):
                self._is_serving = False
            trailing = ((schema.REJECTED, error.rejection),) if error.rejection else ()
            await context.abort(error.code, str(error), trailing)
            raise AssertionError('abort raises') from error

    async def _reply(self, path: str, context: Any) -> bytes:
        began, peer, metadata = time.perf_counter(), context.peer(), context.invocation_metadata()
        try:
            if path != _HEALTH:
                self._calls.check(path, metadata)
            data = await self._first(context)
            if path == _HEALTH:
                return self._health(data)
        except CallError as error:
            raise self._calls.failed(path, peer, error, began) from None
        turn = self._turns.setdefault(peer, asyncio.Semaphore(_THREADS_PER_CONNECTION))
        await turn.acquire()
        running = self._pools[_pool(path)].submit(self._calls.answer, path, metadata, data, peer)
        # A thread continues after its caller has given up.
        running.add_done_callback(lambda _: self._loop.call_soon_threadsafe(turn.release))
        return await asyncio.wrap_future(running)

    async def _first(self, context: Any) -> bytes:
        """Waits for the message of a call. A second one is not waited for."""
        if len(self._silent) >= _MAX_SILENT:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.reschedule(0.0)
        limit = asyncio.timeout(_SILENT_SECONDS)
        try:
            async with limit:
                self._silent[limit] = None
                data = await context.read()
        except TimeoutError:
            what = 'a call without a message'
            raise CallError(grpc.StatusCode.UNAVAILABLE, what) from None
        finally:
            self._silent.pop(limit, None)
        if not isinstance(data, bytes):  # gRPC has replied already, or there is no message.
            what = f'no message, or one that is longer than {self._max_bytes} bytes'
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, what)
        return data

    def _health(self, data: bytes) -> bytes:
        try:
            asked = health_pb2.HealthCheckRequest.FromString(data).service
        except DecodeError:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, 'no health check') from None
        if asked not in ('', schema.SERVICE):
            raise CallError(grpc.StatusCode.NOT_FOUND, 'there is no such service')
        status = health_pb2.HealthCheckResponse.ServingStatus
        state = status.SERVING if self._is_serving else status.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=state).SerializeToString()


def _pool(path: str) -> str:
    if not is_of_vizier(path):
        return 'service'
    return 'suggestions' if path.rpartition('/')[2] in WAITING else 'vizier'


class _Methods(grpc.GenericRpcHandler):
    """Passes every call to one function, which logs unknown methods too."""

    def __init__(self, answer: Callable[[str, Any, Any], Coroutine[Any, Any, bytes]]) -> None:
        self._answer = answer

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        # A stream, though one message is expected: this allows to reject a caller before the
        # message is read, and to log a message that is too long.
        return grpc.stream_unary_rpc_method_handler(functools.partial(self._answer, details.method))
