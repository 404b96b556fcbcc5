"""The faults that happen to a study, one after another, at random moments."""

import contextlib
import dataclasses
import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator

import psutil

from benchmarks.chaotic.scene import Scene

_TICK = 0.1


@dataclasses.dataclass(frozen=True)
class Happened:
    """A fault that has happened.

    Attributes:
        at: seconds since the study began.
        kind: what it was.
        details: to whom, and for how long.
    """

    at: float
    kind: str
    details: str


Fault = Callable[[Scene, random.Random], str]


def happen(scene: Scene, tell: Callable[[Happened], None]) -> list[Happened]:
    """Lets faults happen until the study is done: each kind once, in any order, and again.

    Raises:
        TimeoutError: it is not done by the plan's deadline.
    """
    rng = random.Random(scene.plan.seed)
    start, happened = time.monotonic(), list[Happened]()
    kinds = faults_of(scene)
    rounds = (rng.sample(list(kinds), len(kinds)) for _ in range(scene.plan.rounds))
    order = itertools.chain.from_iterable(rounds)
    while not _passes(scene, start, rng.uniform(*scene.plan.between_faults)):
        kind = next(order, None)
        if kind is None:
            continue
        at = time.monotonic() - start
        happened.append(Happened(at, kind, kinds[kind](scene, rng)))
        tell(happened[-1])
    return happened


def faults_of(scene: Scene) -> dict[str, Fault]:
    """The kinds of fault that can happen there."""
    found: dict[str, Fault] = {
        'SIGKILL of a worker': _kill_worker,
        'SIGKILL of the search': _kill_driver,
    }
    if scene.disk is not None:
        found['a full disk'] = _fill_disk
    if scene.service is None:
        found['SIGSTOP of a worker past its lease'] = _stop_worker
    else:
        found['SIGKILL of the service'] = _kill_service
        found['SIGSTOP of the machine past the lease'] = _stop_machine
        if scene.plan.rounds > 1:
            found['SIGSTOP of a worker past its lease'] = _stop_worker
    if scene.postgres is not None:
        found['restart of PostgreSQL'] = _restart_postgres
    return found


def _passes(scene: Scene, start: float, seconds: float) -> bool:
    """Waits, and for workers that work. Whether the study is done meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end or not scene.is_working():
        if scene.is_done():
            return True
        if time.monotonic() - start > scene.plan.deadline:
            raise TimeoutError(f'it is not done after {scene.plan.deadline:g} s')
        time.sleep(_TICK)
    return False


def _kill_worker(scene: Scene, rng: random.Random) -> str:
    worker = rng.choice(scene.workers())
    worker.kill()
    return f'process {worker.pid}'


def _kill_driver(scene: Scene, rng: random.Random) -> str:
    pid = scene.driver.pid
    scene.driver.kill()
    scene.driver.wait()
    scene.start_driver()
    return f'process {pid}'


def _kill_service(scene: Scene, rng: random.Random) -> str:
    assert scene.service is not None
    pid, seconds = scene.service.pid, rng.uniform(0, 3)
    scene.service.kill()
    scene.service.wait()
    time.sleep(seconds)
    scene.start_service()
    return f'process {pid}; away for {seconds:.1f} s'


def _stop_worker(scene: Scene, rng: random.Random) -> str:
    worker, seconds = rng.choice(scene.workers()), scene.plan.lease_seconds + rng.uniform(0.5, 2)
    with _stopped(worker):
        time.sleep(seconds)
    return f'process {worker.pid}; for {seconds:.1f} s'


def _stop_machine(scene: Scene, rng: random.Random) -> str:
    """A worker and the search that watches it: no process kills it when its lease is over."""
    worker, seconds = rng.choice(scene.workers()), scene.plan.lease_seconds + rng.uniform(0.5, 2)
    with _stopped(psutil.Process(scene.driver.pid)):
        with _stopped(worker):
            time.sleep(seconds)
        alone = rng.uniform(0.5, 2)
        time.sleep(alone)
    return f'process {worker.pid}; for {seconds:.1f} s, the search for {alone:.1f} s more'


@contextlib.contextmanager
def _stopped(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def _fill_disk(scene: Scene, rng: random.Random) -> str:
    assert scene.disk is not None
    seconds = rng.uniform(2, 5)
    scene.disk.fill()
    time.sleep(seconds)
    scene.disk.free()
    return f'for {seconds:.1f} s'


def _restart_postgres(scene: Scene, rng: random.Random) -> str:
    assert scene.postgres is not None
    crash, seconds = rng.random() < 0.5, rng.uniform(0, 3)
    scene.postgres.stop(crash)
    time.sleep(seconds)
    scene.postgres.start()
    return f'{"crashed" if crash else "stopped"}; away for {seconds:.1f} s'
