"""What a service does, in numbers that Prometheus reads: http://host:metrics_port/metrics."""

import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from wsgiref import simple_server

import prometheus_client
from prometheus_client import core, registry

from paxtune.service import auth
from trainer.symbolic.errors import UserError

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Counts requests, and reads from the studies how many trials are held.

    Attributes:
        registry: all of it, apart from what else this process may count.
    """

    def __init__(self, opened: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Starts at zero.

        Args:
            opened: the hubs that are open, by study.
        """
        self.registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            'paxtune_requests',
            'Calls that were answered, by method and by the gRPC code of the answer.',
            ['method', 'code'],
            registry=self.registry,
        )
        self._seconds = prometheus_client.Histogram(
            'paxtune_request_seconds',
            'How long it took to answer a call.',
            ['method'],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.registry.register(_Studies(opened))

    def count(self, method: str, code: str, seconds: float) -> None:
        """Counts a call that was answered."""
        self._requests.labels(method, code).inc()
        self._seconds.labels(method).observe(seconds)


class _Studies(registry.Collector):
    def __init__(self, opened: Callable[[], Mapping[str, Any]]) -> None:
        self._opened = opened

    def collect(self) -> Iterable[core.Metric]:
        held = core.GaugeMetricFamily(
            'paxtune_leases', 'Trials that a worker holds.', labels=['study']
        )
        for study, hub in sorted(self._opened().items()):
            held.add_metric([study], hub.num_leases)
        yield held


@contextlib.contextmanager
def page(
    metrics: Metrics,
    host: str,
    port: int,
    token: str | None = None,
    context: ssl.SSLContext | None = None,
) -> Iterator[int]:
    """Serves the metrics over HTTP while entered. Yields the port.

    Args:
        metrics: what to serve.
        host: the address to listen at.
        port: 0 for any that is free.
        token: what a reader must know, as `Authorization: Bearer …`.
        context: speaks TLS.

    Raises:
        UserError: the address cannot be had.
    """
    render = prometheus_client.make_wsgi_app(metrics.registry)

    def app(environ: Any, start_response: Any) -> Any:
        given = environ.get('HTTP_AUTHORIZATION')
        if not auth.is_authorized([] if given is None else [given], token):
            start_response('401 Unauthorized', [('WWW-Authenticate', 'Bearer')])
            return [b'']
        if environ.get('PATH_INFO') != '/metrics':
            start_response('404 Not Found', [])
            return [b'']
        return render(environ, start_response)

    class Listener(_Listener):
        address_family = socket.AF_INET6 if ':' in host else socket.AF_INET

    try:
        listener = Listener((host, port), _Reader)
    except OSError as error:
        raise UserError(
            f'--metrics_port={port}: {auth.address(host, port)} cannot be had: {error.strerror}'
        ) from error
    listener.set_app(app)
    if context is not None:
        listener.socket = context.wrap_socket(
            listener.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=listener.serve_forever, name='metrics', daemon=True)
    thread.start()
    try:
        yield listener.server_port
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


class _Listener(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        # The base class asks the network for this machine's name, which may take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = 'localhost', self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """Who hangs up, or speaks no HTTP, is no error of ours."""


class _Reader(simple_server.WSGIRequestHandler):
    timeout = 10

    def log_message(self, *args: object) -> None:
        """A page that is read every few seconds is no news."""
