"""The simulated network: channels of gRPC whose calls are lost, late, doubled, slow or cut off."""

from collections.abc import Callable
from typing import Any

import grpc

from paxtune.service import schema
from tests.simulation.process import Process
from tests.simulation.world import World

_LATENCY = 0.001, 0.02
_WRITES = 'add', 'claim', 'update', 'lose'


class CallError(grpc.RpcError):
    """A call that failed, as gRPC reports it."""

    def __init__(self, code: grpc.StatusCode, details: str = '', trailing: Any = ()) -> None:
        super().__init__(details)
        self._code, self._details, self._trailing = code, details, trailing

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailing


class Channel:
    """The channel of one process to the service."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process, self._is_closed = world, process, False

    def close(self) -> None:
        self._is_closed = True

    def unary_unary(
        self,
        path: str,
        request_serializer: Any = bytes,
        response_deserializer: Any = bytes,
        _registered_method: bool = False,
    ) -> Callable[..., Any]:
        """Makes a function that calls a method."""

        def call(message: Any, timeout: float, metadata: Any = ()) -> Any:
            if self._is_closed:
                raise ValueError('Cannot invoke RPC on closed channel!')
            request = request_serializer(message)
            reply = _Call(self._world, self._process, path, request, timeout).outcome()
            self._world.ledger.acknowledged(self._process, path, request, reply)
            return response_deserializer(reply)

        return call


class _Call:
    """One call. Its request may arrive several times, and its reply never."""

    def __init__(
        self, world: World, process: Process, path: str, request: bytes, timeout: float
    ) -> None:
        self._world, self._process = world, process
        self._path, self._request, self._timeout = path, request, timeout
        self._where = process.name, path.removeprefix(f'/{schema.SERVICE}/')
        self._outcome: bytes | CallError | None = None
        self._task = world.scheduler.task()
        self._ticket = self._task.ticket

    def outcome(self) -> bytes:
        """Sends the request, and waits for the reply or the deadline; raises CallError."""
        world, timeout = self._world, self._timeout
        if not world.happens('request lost', *self._where):
            world.scheduler.at(self._latency(), self._arrive)
        if world.happens('request duplicated', *self._where):
            world.scheduler.at(self._latency() * 50, self._arrive)
        if world.happens('request late', *self._where):
            # It arrives when its caller does not wait any more.
            later = world.draws.uniform(0.0, 20.0, 'late', *self._where)
            world.scheduler.at(timeout + later, self._arrive)
        deadline = CallError(grpc.StatusCode.DEADLINE_EXCEEDED, 'Deadline Exceeded')
        world.scheduler.at(timeout, lambda: self._finish(deadline))
        world.scheduler.park()
        if isinstance(self._outcome, CallError):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def _latency(self) -> float:
        return self._world.draws.uniform(*_LATENCY, 'latency', *self._where)

    def _arrive(self) -> None:
        if self._world.now >= self._process.host.requests_lost_until:
            self._world.service.receive(self._path, self._request, self._reply)

    def _reply(self, value: bytes | CallError) -> None:
        world = self._world
        if world.now < self._process.host.replies_lost_until:
            return
        if world.happens('reply lost', *self._where):
            return
        if self._where[1] in _WRITES and world.happens('replies swallowed', *self._where):
            # This one and those of a while, of all processes of the machine.
            longest = 2.0 * world.faults.settings.lease
            swallowing = world.draws.uniform(1.0, longest, 'swallowing', *self._where)
            self._process.host.replies_lost_until = world.now + swallowing
            return
        latency = self._latency()
        if world.happens('reply slow', *self._where):
            latency = world.draws.uniform(5.0, 28.0, 'slow', *self._where)
        world.scheduler.at(latency, lambda: self._finish(value))

    def _finish(self, value: bytes | CallError) -> None:
        if self._outcome is None:
            self._outcome = value
            scheduler = self._world.scheduler
            scheduler.at(0.0, lambda: scheduler.wake(self._task, self._ticket))
