"""A TCP proxy whose network can be disturbed: slow, cut, in one direction, or half-open."""

import asyncio
import contextlib
import dataclasses
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Literal, TypeAlias, TypeVar

Trouble: TypeAlias = Literal['slow', 'cut', 'no replies', 'no requests', 'half-open']
"""A disturbance of connections.

A cut breaks them, and no others can be made. Half-open ones have been left by the service, and its
clients do not know. The others delay all bytes, or lose those in one direction.
"""

_T = TypeVar('_T')
_CHUNK = 2**16
_ABORT = struct.pack('ii', 1, 0)  # SO_LINGER: a close sends a reset.


@dataclasses.dataclass(eq=False)
class _Connection:
    """A client's connection, and the one to the service.

    Attributes:
        is_broken: bytes of it are lost, so it cannot go on.
    """

    client: asyncio.StreamWriter
    service: asyncio.StreamWriter
    is_broken: bool = False


class Proxy:
    """Forwards connections to a port of this machine, from `start` to `stop`.

    Attributes:
        port: where it listens, on 127.0.0.1.
    """

    def __init__(self, target: int) -> None:
        """Listens on a free port, and forwards to the port `target`."""
        self._target = target
        self._troubles: set[Trouble] = set()
        self._delay = 0.0
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        listener = socket.create_server(('127.0.0.1', 0), backlog=128)
        self.port: int = listener.getsockname()[1]
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, sock=listener))

    def disturb(self, trouble: Trouble, delay: float = 0.0) -> None:
        """Begins a disturbance. `delay` is that of bytes in a slow network, in seconds."""

        async def begin() -> None:
            self._troubles.add(trouble)
            self._delay = delay or self._delay
            for each in list(self._connections):
                if trouble == 'cut':
                    _reset(each.client, each.service)
                elif trouble == 'half-open':
                    each.is_broken = True
                    each.service.close()

        self._run(begin())

    def heal(self, trouble: Trouble) -> None:
        """Ends a disturbance. Connections that have lost bytes are reset."""

        async def end() -> None:
            self._troubles.discard(trouble)
            for each in list(self._connections):
                if each.is_broken:
                    _reset(each.client, each.service)

        self._run(end())

    def stop(self) -> None:
        """Closes everything."""

        async def end() -> None:
            self._server.close()
            for each in list(self._connections):
                _reset(each.client, each.service)
            running = asyncio.all_tasks() - {asyncio.current_task()}
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            if 'cut' in self._troubles:
                raise ConnectionRefusedError
            replies, service = await asyncio.open_connection('127.0.0.1', self._target)
        except OSError:  # No service, or no way to it.
            _reset(client)
            return
        connection = _Connection(client, service)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._forward(connection, reader, service, 'no requests'),
                self._forward(connection, replies, client, 'no replies'),
            )
        except (OSError, asyncio.CancelledError):
            _reset(client, service)
        finally:
            self._connections.discard(connection)

    async def _forward(
        self,
        connection: _Connection,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        loss: Trouble,
    ) -> None:
        while data := await source.read(_CHUNK):
            if 'slow' in self._troubles:
                await asyncio.sleep(self._delay)
            connection.is_broken |= loss in self._troubles
            if not connection.is_broken or self._troubles.isdisjoint((loss, 'half-open')):
                target.write(data)
                await target.drain()
        if not connection.is_broken:
            target.close()


def _reset(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        with contextlib.suppress(OSError):
            writer.get_extra_info('socket').setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        writer.transport.abort()
