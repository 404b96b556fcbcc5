"""Servers of the standard library that serve in a thread."""

import contextlib
import socketserver
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[int]:
    """Serves while entered; yields the port."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01})
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
