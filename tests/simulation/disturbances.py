"""Timed faults of processes, machines, the network, the disk and the clock."""

import functools
from collections.abc import Sequence

from tests.simulation.faults import Timed
from tests.simulation.machine import Machine
from tests.simulation.process import Process
from tests.simulation.world import World

_OF_A_SERVICE = ('kill worker', 'stop worker', 'kill service', 'stop service',
                 'cut both ways', 'cut requests', 'cut replies')  # fmt: skip


def plan(world: World, machines: Sequence[Machine]) -> None:
    """Adds the timed faults of a world to its events."""

    def begin(fault: Timed) -> None:
        if world.faults.begins(fault):
            world.say('FAULT', fault.name)
            _begin(world, machines, fault)

    for each in world.faults.timed():
        if world.is_local and each.kind in _OF_A_SERVICE:
            continue
        world.scheduler.at(each.time, functools.partial(begin, each))


def _begin(world: World, machines: Sequence[Machine], fault: Timed) -> None:
    lease = world.faults.settings.lease
    length = 1.0 + fault.length * 2.5 * lease
    position = fault.share * len(machines)
    machine, rest = machines[int(position)], position % 1.0
    living = [each for each in machine.workers if each.is_alive]
    match fault.kind:
        case 'kill worker' if living:
            _chosen(living, rest).exit(-9)
        case 'stop worker' if living:
            _chosen(living, rest).stop(length)
        case 'kill driver' if machine.driver.is_alive:
            machine.driver.exit(-9)
        case 'stop driver':
            machine.driver.stop(length)
        case 'interrupt driver' if machine.driver.is_alive:
            machine.driver.interrupt()
        case 'kill machine':
            machine.die()
        case 'stop machine':
            for each in (*living, machine.driver):
                each.stop(length)
        case 'cut both ways' | 'cut requests' | 'cut replies':
            _cut(world, machine, fault.kind, length)
        case 'kill service' if world.service.process.is_alive:
            world.service.process.exit(-9)
        case 'stop service':
            world.service.process.stop(length * 0.6)
        case 'disk full':
            world.files.full_until = world.now + 1.0 + fault.length * 20.0
        case 'step of the clock':
            of_service = rest > 0.5 and not world.is_local
            host = world.service.process.host if of_service else machine.host
            host.clock_step += (fault.length - 0.5) * 7200.0


def _chosen(processes: Sequence[Process], share: float) -> Process:
    return processes[int(share * len(processes))]


def _cut(world: World, machine: Machine, kind: str, length: float) -> None:
    until = world.now + length
    if kind != 'cut replies':
        machine.host.requests_lost_until = until
    if kind != 'cut requests':
        machine.host.replies_lost_until = until
