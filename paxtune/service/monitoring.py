"""Prometheus metrics of a service: http://host:metrics_port/metrics."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from wsgiref import simple_server

import prometheus_client
from prometheus_client import core, registry

from paxtune.service import auth
from paxtune.service.tokens import Token, matching
from trainer.symbolic.errors import UserError

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Counts calls, and reads the number of leases; `registry` has only these metrics."""

    def __init__(self, opened: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Starts at zero. `opened` returns the open coordinators, by study."""
        self.registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            'paxtune_requests',
            'Calls, by method and by the gRPC code of the reply.',
            ['method', 'code'],
            registry=self.registry,
        )
        self._seconds = prometheus_client.Histogram(
            'paxtune_request_seconds',
            'Seconds from a call to its reply.',
            ['method'],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.registry.register(_Studies(opened))

    def count(self, method: str, code: str, seconds: float) -> None:
        """Counts a finished call."""
        self._requests.labels(method, code).inc()
        self._seconds.labels(method).observe(seconds)


class _Studies(registry.Collector):
    def __init__(self, opened: Callable[[], Mapping[str, Any]]) -> None:
        self._opened = opened

    def collect(self) -> Iterable[core.Metric]:
        held = core.GaugeMetricFamily(
            'paxtune_leases', 'Trials leased to a worker.', labels=['study']
        )
        for study, coordinator in sorted(self._opened().items()):
            held.add_metric([study], coordinator.num_leases)
        yield held


@contextlib.contextmanager
def serve(
    metrics: Metrics,
    host: str,
    port: int,
    tokens: Sequence[Token] = (),
    tls: tuple[Path, Path] | None = None,
) -> Iterator[int]:
    """Serves the metrics over HTTP while entered. Yields the port.

    Args:
        port: 0 for any free port.
        tokens: of readers, as `Authorization: Bearer …`; every reader is accepted without any.
        tls: the files of the certificate and of its key; None for HTTP without TLS.

    Raises:
        UserError: the address is unavailable, or the certificate is invalid.
    """
    if tls is not None:
        auth.certificate(*tls)  # prometheus_client would ask for a passphrase at the terminal.
    certificate, key = (None, None) if tls is None else map(str, tls)
    try:
        server, thread = prometheus_client.start_http_server(
            port, host, metrics.registry, certificate, key
        )
    except OSError as error:
        raise UserError(
            f'--metrics_port={port}: {auth.address(host, port)} is unavailable: {error.strerror}'
        ) from error
    server.set_app(_authorized(server.get_app(), tokens))
    server.RequestHandlerClass = _RequestHandler
    if tls is not None:
        # The thread of the request does the handshake: a silent client delays no other one.
        vars(server.socket).update(do_handshake_on_connect=False)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _authorized(app: Any, tokens: Sequence[Token]) -> Any:
    """Limits a WSGI application to /metrics, and to readers with a token for all studies."""

    def application(environ: Any, start_response: Any) -> Any:
        given = environ.get('HTTP_AUTHORIZATION')
        granted = matching([] if given is None else [given], tokens)
        if tokens and all(each.prefix for each in granted):
            start_response('401 Unauthorized', [('WWW-Authenticate', 'Bearer')])
            return [b'']
        if environ.get('PATH_INFO') != '/metrics':
            start_response('404 Not Found', [])
            return [b'']
        return app(environ, start_response)

    return application


class _RequestHandler(simple_server.WSGIRequestHandler):
    timeout = 10

    def handle(self) -> None:
        """Ignores client disconnects, silent clients and failed handshakes."""
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, *args: object) -> None:
        """Writes no log of requests."""
