"""The faults that happen to a study, alone and two at a time."""

import concurrent.futures
import dataclasses
import itertools
import random
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping

import psutil

from benchmarks.chaotic.machine import Machine, send, stopped
from benchmarks.chaotic.proxy import Trouble
from benchmarks.chaotic.scene import Plan, Scene

_TICK = 0.1
_MAX_OFFSET = 1.5

NETWORK: Mapping[str, Trouble] = {
    'a slow network': 'slow',
    'connections are cut': 'cut',
    'the network loses replies': 'no replies',
    'the network loses requests': 'no requests',
    'half-open connections': 'half-open',
}
"""The kinds of fault between a machine and the service."""


@dataclasses.dataclass(frozen=True)
class Happened:
    """A fault that has happened.

    Attributes:
        at: seconds since the study began.
        kind: what it was.
        details: to whom, and for how long.
        overlaps: another one happened meanwhile.
        is_second: that one began earlier.
    """

    at: float
    kind: str
    details: str
    overlaps: bool
    is_second: bool


@dataclasses.dataclass(frozen=True)
class Planned:
    """One fault, or two that overlap, as the seed determines them.

    Attributes:
        after: seconds since the end of the one before.
        kinds: one kind, or two.
        offset: seconds between the beginnings of the two.
        seeds: what the details of each kind are drawn from.
    """

    after: float
    kinds: tuple[str, ...]
    offset: float
    seeds: tuple[int, ...]


Fault = Callable[[Scene, random.Random], str]


def schedule(plan: Plan, kinds: Mapping[str, Fault]) -> deque[Planned]:
    """Plans all faults of a run: kinds in a random order, and pairs, the longer of two first."""
    rng = random.Random(plan.seed)
    alone = rng.sample(list(kinds), len(kinds) if plan.num_alone is None else plan.num_alone)
    planned: list[tuple[str, ...]] = [(kind,) for kind in alone]
    rounds = (rng.sample(list(kinds), len(kinds)) for _ in itertools.count())
    for second in itertools.islice(itertools.chain.from_iterable(rounds), plan.num_pairs):
        lasting = [kind for kind in kinds if kind not in (second, *_SHORT)]
        planned.append((rng.choice(lasting), second))
    rng.shuffle(planned)
    return deque(
        Planned(
            rng.uniform(*plan.between_faults),
            each,
            rng.uniform(0.1, _MAX_OFFSET),
            tuple(rng.randrange(2**32) for _ in each),
        )
        for each in planned
    )


def happen(
    scene: Scene, planned: deque[Planned], tell: Callable[[Happened], None]
) -> list[Happened]:
    """Takes one planned fault after another and lets it happen, until the study is done.

    A fault that comes too late for this study stays planned.

    Raises:
        TimeoutError: it is not done by the plan's deadline.
    """
    start, happened = time.monotonic(), list[Happened]()
    kinds = faults_of(scene)

    def one(plan: Planned, number: int) -> Happened:
        time.sleep(number * plan.offset)
        at, kind = time.monotonic() - start, plan.kinds[number]
        details = kinds[kind](scene, random.Random(plan.seeds[number]))
        return Happened(at, kind, details, len(plan.kinds) > 1, number > 0)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        while not _passes(scene, start, planned[0].after if planned else 1.0):
            if not planned:
                continue
            plan = planned.popleft()
            for each in pool.map(one, [plan] * 2, range(len(plan.kinds))):
                happened.append(each)
                tell(each)
    return happened


def faults_of(scene: Scene) -> dict[str, Fault]:
    """The kinds of fault that can happen there."""
    found: dict[str, Fault] = {
        'SIGKILL of a worker': _kill_worker,
        'SIGKILL of a search': _kill_search,
        'SIGKILL of a machine': _kill_machine,
        'SIGSTOP of a worker past its lease': _stop_worker,
    }
    if scene.disk is not None:
        found['a full disk'] = _fill_disk
    if scene.service is None:
        found['SIGSTOP of the service past a lease'] = _stop_search
    else:
        found['SIGKILL of the service'] = _kill_service
        found['SIGSTOP of the service past a lease'] = _stop_service
        found['SIGSTOP of a machine past its leases'] = _stop_machine
        found |= {kind: _network(trouble) for kind, trouble in NETWORK.items()}
    if scene.postgres is not None:
        found['restart of PostgreSQL'] = _restart_postgres
    return found


_SHORT = ('SIGKILL of a worker', 'SIGKILL of a search', 'SIGKILL of a machine')


def _passes(scene: Scene, start: float, seconds: float) -> bool:
    """Waits, and for workers that work. Returns True if the study is done meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end or not scene.is_working():
        if scene.is_done():
            return True
        if time.monotonic() - start > scene.plan.deadline:
            raise TimeoutError(f'it is not done after {scene.plan.deadline:g} s')
        time.sleep(_TICK)
    return False


def _worker(machine: Machine, rng: random.Random) -> list[psutil.Process]:
    """Chooses a worker; none where the other fault has just ended them all."""
    workers = machine.workers()
    return [workers[int(rng.random() * len(workers))]] if workers else []


def _named(machine: Machine, processes: list[psutil.Process]) -> str:
    return f'{machine.name}, process {", ".join(str(each.pid) for each in processes) or "none"}'


def _past_lease(scene: Scene, rng: random.Random) -> float:
    return scene.plan.lease_seconds + rng.uniform(0.5, 2)


def _kill_worker(scene: Scene, rng: random.Random) -> str:
    machine = rng.choice(scene.machines)
    victims = _worker(machine, rng)
    for worker in victims:
        send(worker, signal.SIGKILL)
    return _named(machine, victims)


def _kill_search(scene: Scene, rng: random.Random) -> str:
    machine = rng.choice(scene.machines)
    return f'{machine.name}, process {machine.kill_search()}'


def _kill_machine(scene: Scene, rng: random.Random) -> str:
    machine = rng.choice(scene.machines)
    machine.kill()
    return f'{machine.name}, all processes'


def _stop_worker(scene: Scene, rng: random.Random) -> str:
    machine, seconds = rng.choice(scene.machines), _past_lease(scene, rng)
    victims = _worker(machine, rng)
    with stopped(*victims):
        time.sleep(seconds)
    return f'{_named(machine, victims)}; for {seconds:.1f} s'


def _stop_machine(scene: Scene, rng: random.Random) -> str:
    """The search goes on last: it kills no worker whose lease is over."""
    machine, seconds = rng.choice(scene.machines), _past_lease(scene, rng)
    alone = rng.uniform(0, 2)
    with stopped(machine.search):
        with stopped(*machine.workers()):
            time.sleep(seconds)
        time.sleep(alone)
    return f'{machine.name}; for {seconds:.1f} s, the search for {alone:.1f} s more'


def _stop_search(scene: Scene, rng: random.Random) -> str:
    seconds = _past_lease(scene, rng)
    with stopped(scene.machines[0].search):
        time.sleep(seconds)
    return f'inside the search; for {seconds:.1f} s'


def _stop_service(scene: Scene, rng: random.Random) -> str:
    service, seconds = scene.service, _past_lease(scene, rng)
    assert service is not None
    with stopped(service):
        time.sleep(seconds)
    return f'process {service.pid}; for {seconds:.1f} s'


def _kill_service(scene: Scene, rng: random.Random) -> str:
    assert scene.service is not None
    pid, seconds = scene.service.pid, rng.uniform(1, 4)
    scene.service.kill()
    scene.service.wait()
    time.sleep(seconds)
    scene.start_service()
    return f'process {pid}; away for {seconds:.1f} s'


def _network(trouble: Trouble) -> Fault:
    def fault(scene: Scene, rng: random.Random) -> str:
        machine = rng.choice(scene.machines)
        delay = rng.uniform(0.1, 2) if trouble == 'slow' else 0.0
        # For less than a lease, and for more.
        seconds = rng.uniform(0.5, 2) * scene.plan.lease_seconds
        assert machine.network is not None
        machine.network.disturb(trouble, delay)
        time.sleep(seconds)
        machine.network.heal(trouble)
        late = f', by {delay:.1f} s' if delay else ''
        return f'{machine.name}; for {seconds:.1f} s{late}'

    return fault


def _fill_disk(scene: Scene, rng: random.Random) -> str:
    assert scene.disk is not None
    seconds = rng.uniform(2, 5)
    scene.disk.fill()
    time.sleep(seconds)
    scene.disk.free()
    return f'for {seconds:.1f} s'


def _restart_postgres(scene: Scene, rng: random.Random) -> str:
    assert scene.postgres is not None
    crash, seconds = rng.random() < 0.5, rng.uniform(1, 4)
    scene.postgres.stop(crash)
    time.sleep(seconds)
    scene.postgres.start()
    return f'{"crashed" if crash else "stopped"}; away for {seconds:.1f} s'
