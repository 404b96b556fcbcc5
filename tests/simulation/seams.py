"""The seams of the real code: its clocks, locks, random numbers, network and processes."""

import contextlib
import datetime
import functools
import logging
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import grpc
import tenacity
from google.protobuf.internal import well_known_types

from paxtune import worker
from paxtune.engines import leased
from paxtune.running import supervisor, trial_json, trial_run, tuner
from paxtune.running.device_allocation import Place
from paxtune.service import connection, remote_store
from paxtune.storage import local_store, open_study, vizier_store
from paxtune.study import transitions
from tests.simulation.children import Children, Line, ProcessTable
from tests.simulation.files import FaultyDatabase
from tests.simulation.locks import Threading
from tests.simulation.network import Channel
from tests.simulation.world import World
from trainer.checkpoints import handover
from trainer.program.packing import place
from trainer.runtime import directory, interrupt, wall_clock


class _Time:
    """The module `time`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    perf_counter = monotonic

    def time(self) -> float:
        return self._world.wall_time

    def sleep(self, seconds: float) -> None:
        self._world.scheduler.sleep(seconds)


def _datetime(world: World) -> Any:
    """Makes the module `datetime`."""

    class Now(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.fromtimestamp(world.wall_time, tz)

    names = {name: getattr(datetime, name) for name in ('UTC', 'timedelta', 'timezone')}
    return types.SimpleNamespace(datetime=Now, **names)


def _uuid(world: World) -> Any:
    """Makes the module `uuid`."""

    def uuid4() -> uuid.UUID:
        name = world.process.name
        high, low = (int(world.draws.share('uuid', name) * 2**48) for _ in range(2))
        return uuid.UUID(int=high << 80 | low, version=4)

    return types.SimpleNamespace(uuid4=uuid4, UUID=uuid.UUID)


def _random(world: World) -> Any:
    def uniform(low: float, high: float) -> float:
        return world.draws.uniform(low, high, 'backoff', world.process.name)

    return types.SimpleNamespace(uniform=uniform, random=lambda: uniform(0.0, 1.0))


class _Interrupt:
    """An `Interrupt` of a simulated process."""

    exit_code = 143

    def __init__(self, exit: object) -> None: ...

    def __enter__(self) -> '_Interrupt':
        return self

    def __exit__(self, *error: object) -> None:
        return

    def requested(self) -> bool:
        return World.current.process.is_interrupted


class _Errors(logging.Handler):
    """Takes errors in logs, which have a traceback, for violations; and all logs for the trace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        name = self._world.process.name
        if record.exc_info and record.exc_info[1] is not None:
            self._world.violate_by('INTERNAL', f'{name}: {record.getMessage()}', record.exc_info[1])
        else:
            self._world.say(name, 'logs:', record.getMessage())


def _sleep(seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Sleeps in real time, unless the project asks: a simulation would take hours."""
    if (module := sys._getframe(1).f_globals['__name__']).startswith(('paxtune.', 'trainer.')):
        raise AssertionError(f'{module} sleeps in real time in a simulation')
    sleep(seconds)


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """Replaces the modules that reach out of a process, while entered."""
    World.current = world
    clock, locks, ids = _Time(world), Threading(world), _uuid(world)
    fakes = {id(time): clock, id(threading): locks, id(uuid): ids}
    with contextlib.ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for module in list(sys.modules.values()):
            if getattr(module, '__name__', '').startswith('paxtune.'):
                for name in ('time', 'threading', 'uuid'):
                    if (fake := fakes.get(id(vars(module).get(name)))) is not None:
                        put(module, name, fake)
        for owner in (place, tenacity, tenacity.nap, wall_clock):
            put(owner, 'time', clock)
        put(time, 'sleep', _sleep)
        put(tenacity.wait, 'random', _random(world))
        for owner in (vizier_store, remote_store, trial_json, well_known_types):
            put(owner, 'datetime', _datetime(world))
        _put_processes(world, put)
        _put_logs(world, stack)
        yield


def _put_processes(world: World, put: Any) -> None:
    names = ('RpcError', 'StatusCode', 'ServicerContext')
    channels = {name: getattr(grpc, name) for name in names}
    channels['insecure_channel'] = lambda target, options: Channel(world, world.process)
    put(connection, 'grpc', types.SimpleNamespace(**channels))
    put(leased.Heartbeat, 'start', lambda self: world.process.spawn(self.run))
    put(leased, 'exit_now', lambda code: world.process.exit(code))
    put(supervisor, 'WorkerLine', Line)
    put(tuner, 'noted_ctrl_c', lambda: contextlib.nullcontext(lambda: False))
    put(trial_run, 'kept_surroundings', contextlib.nullcontext)
    put(worker, 'compilation_cache', types.SimpleNamespace(enable=lambda: None))
    put(worker, 'command', types.SimpleNamespace(say=lambda text, file: None))
    put(interrupt, 'Interrupt', _Interrupt)
    put(supervisor, 'subprocess', Children(world))
    put(supervisor, 'psutil', ProcessTable(world))
    put(supervisor, 'shutil', world.files)
    put(supervisor, 'places', lambda count: [Place((), {})] * count)
    # Fewer events: these only look.
    put(supervisor, '_TICK_SECONDS', 1.0)
    put(supervisor, '_LOOK_SECONDS', 2.5)
    put(directory, 'os', world.files)
    put(handover, 'os', world.files)
    host = types.SimpleNamespace(gethostname=lambda: world.process.host.name)
    put(directory, 'socket', host)
    put(transitions, 'socket', host)
    put(supervisor, '_HOST', 'machine')
    put(local_store, 'os', world.files)
    if world.is_local:
        put(open_study, 'Database', functools.partial(FaultyDatabase.of_caller, world))
    vars(directory)['open'] = world.files.open  # There it is a builtin.


def _put_logs(world: World, stack: contextlib.ExitStack) -> None:
    stack.callback(vars(directory).pop, 'open')
    log, handler = logging.getLogger('paxtune'), _Errors(world)
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False

    def restore() -> None:
        log.removeHandler(handler)
        log.level, log.propagate = before

    stack.callback(restore)
    absl = logging.getLogger('absl')
    stack.callback(setattr, absl, 'disabled', absl.disabled)
    absl.disabled = True
