"""The simulated process of `paxtune.serve`: the real server and coordinators behind the network."""

import contextlib
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2

from paxtune.service import calls, schema, server
from paxtune.service.calls import Calls
from paxtune.service.registry import DatabaseStudies
from paxtune.storage.database import DatabaseUnavailableError
from paxtune.vizier_service.service import VizierService
from tests.simulation.files import FaultyDatabase
from tests.simulation.network import CallError
from tests.simulation.process import Host, Process
from tests.simulation.scheduler import KilledError
from tests.simulation.world import World

_REFUSED = CallError(grpc.StatusCode.UNAVAILABLE, 'connection refused')
_RESET = CallError(grpc.StatusCode.UNAVAILABLE, 'Socket closed')
_SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

Reply = Callable[[bytes | CallError], None]


class Service:
    """The service, which is started again whenever it dies.

    Attributes:
        process: the present one.
    """

    def __init__(self, world: World) -> None:
        self._world, self._host, self._starts = world, Host('service'), 0
        world.database.parent.mkdir()
        self._database: FaultyDatabase
        self.start()

    def start(self) -> None:
        """Starts a process with an empty memory."""
        world = self._world
        self._starts += 1
        self.process = Process(world, f'service.{self._starts}', self._host)
        self.process.on_exit.append(self._died)
        self._waiting: list[Reply] = []
        self._num_busy = 0
        if self._starts > 1:
            self._database.close()
        with world.scheduler.inline(self.process):
            self._database = FaultyDatabase(world, world.database, self.process)
            self._database.hold()
            lease = world.faults.settings.lease

            studies = DatabaseStudies(self._database, lease, clock=lambda: world.now)
            vizier = VizierService(self._database)
            self._calls, self._look = Calls(studies, vizier_service=vizier), studies.look
        world.waiting.doubt()  # A new process gives new leases.
        self.process.spawn(self._watch)
        world.say(self.process.name, 'starts')

    def _watch(self) -> None:
        while True:
            self._world.scheduler.sleep(server.CHECK_SECONDS)
            with contextlib.suppress(DatabaseUnavailableError):
                self._look()
            self._world.waiting.tick()

    def _died(self) -> None:
        world = self._world
        self._database.release()
        for reply in self._waiting:
            reply(_RESET)
        world.scheduler.at(world.draws.uniform(0.2, 6.0, 'service away'), self.start)

    def receive(self, path: str, request: bytes, reply: Reply) -> None:
        """Handles a request that has arrived."""
        world, process = self._world, self.process
        if not process.is_alive:
            reply(_REFUSED)
            return
        if process.stopped_until > world.now:
            later = world.draws.uniform(0.0, 0.01, 'after the stop')
            wait = process.stopped_until - world.now + later
            world.scheduler.at(wait, lambda: self.receive(path, request, reply))
            return
        if world.happens('database stalls'):
            longest = 2.0 * world.faults.settings.lease
            self._database.stall = world.draws.uniform(1.0, longest, 'stall')
        self._waiting.append(reply)
        # A waiting call holds locks, which an event could not wait for.
        if self._num_busy or self._database.stall:
            self._num_busy += 1
            process.spawn(lambda: self._handle(path, request, reply))
            return
        self._num_busy += 1
        with world.scheduler.inline(process):
            try:
                self._handle(path, request, reply)
            except KilledError:
                return

    def _handle(self, path: str, request: bytes, reply: Reply) -> None:
        try:
            value: bytes | CallError = self._answer(path, request)
        except CallError as error:
            value = error
        self._num_busy -= 1
        self._waiting.remove(reply)
        reply(value)

    def _answer(self, path: str, request: bytes) -> bytes:
        is_of_vizier = calls.is_of_vizier(path)
        if not is_of_vizier and not path.startswith(f'/{schema.SERVICE}/'):
            return bytes(_SERVING.SerializeToString())
        waiting, method = self._world.waiting, path.removeprefix(f'/{schema.SERVICE}/')
        waiting.handle()
        try:
            reply = self._calls.answer(path, (), request, 'a client')
        except calls.CallError as error:
            trailing = ((schema.REJECTED, error.rejection),) if error.rejection else ()
            raise CallError(error.code, str(error), trailing) from error
        if method == 'heartbeat':
            waiting.heard(schema.decode(schema.HeartbeatRequest, request))
        elif method == 'claim':
            waiting.claimed(schema.decode(schema.ClaimReply, reply))
        return reply
