import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from paxtune.engines.ray_cluster.crew import Crew, Outcome
from paxtune.engines.ray_cluster.member import Member
from paxtune.running.supervisor import DETACHED, STOPPED
from paxtune.service.address import Service

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_PAUSE_SECONDS = 1.0
_LEAVING_SECONDS = 300.0
_MAX_FALSE_STARTS = 3


class Group(threading.Thread):
    """Keeps one worker running: a placement group, and an actor for each process of the worker.

    A lost node, or a killed actor, loses all processes of the worker. They start again where Ray
    finds room; until then their demand is visible to its autoscaler.

    Attributes:
        outcome: the end of the worker; None while it runs.
    """

    def __init__(
        self,
        crew: Crew,
        index: int,
        name: str,
        connect: Callable[[], tuple[Service, str]],
        leaving: threading.Event,
    ) -> None:
        """Prepares a worker.

        Args:
            index: of the worker, from 0.
            name: of its placement group.
            connect: returns the service and its certificate.
            leaving: set to end the workers of the crew; an error of one ends all.
        """
        super().__init__(name=name, daemon=True)
        self._crew, self._index = crew, index
        self._connect, self._leaving = connect, leaving
        self.outcome: Outcome | None = None

    def run(self) -> None:
        try:
            with _placed(self._crew, self.name) as group:
                self.outcome = self._keep(group)
        except Exception as error:
            _LOG.exception('worker %d', self._index + 1)
            self.outcome = Outcome(STOPPED, f'{type(error).__name__}: {error}')
        if self.outcome.code:
            self._leaving.set()

    def _keep(self, group: PlacementGroup) -> Outcome:
        false_starts = 0
        while not self._leaving.is_set():
            outcome = self._once(group)
            if outcome.code != DETACHED:
                return outcome
            if outcome.message:
                _LOG.warning('worker %d: %s', self._index + 1, outcome.message)
            false_starts = false_starts + 1 if outcome.false_starts else 0
            if false_starts >= _MAX_FALSE_STARTS:
                return Outcome(
                    STOPPED,
                    f'worker {self._index + 1} ended {false_starts} times in a row before it had '
                    f'a trial. {outcome.message}'.rstrip(),
                )
            self._leaving.wait(_PAUSE_SECONDS)
        return Outcome(0)

    def _once(self, group: PlacementGroup) -> Outcome:
        """Runs the processes of the worker until one of them ends."""
        actor = ray.remote(Member)
        members = [
            actor.options(
                **self._crew.actor_options,
                max_concurrency=2,  # `leave` while it runs.
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, i),
            ).remote()
            for i in range(self._crew.processes)
        ]
        addresses: list[str] = []
        try:
            addresses = self._addresses(members)
            return self._run(members, addresses[0]) if addresses else Outcome(0)
        except RayActorError as error:
            if not addresses:
                return Outcome(DETACHED, f'it did not start: {error}', 1)
            return Outcome(DETACHED, f'it was lost: {str(error).splitlines()[0]}')
        finally:
            for member in members:
                ray.kill(member)

    def _addresses(self, members: list[Any]) -> list[str]:
        """Waits until all processes have a place; none if the worker is to leave before."""
        waiting = [member.address.remote() for member in members]
        count = len(waiting)
        while len(ray.wait(waiting, num_returns=count, timeout=_LOOK_SECONDS)[0]) < count:
            if self._leaving.is_set():
                return []
        found: list[str] = ray.get(waiting)
        return found

    def _run(self, members: list[Any], coordinator: str) -> Outcome:
        service, certificate = self._connect()
        count = len(members)
        joining = [f'--coordinator={coordinator}', f'--num_processes={count}'] if count > 1 else []
        running = [
            member.run.remote(
                self._crew,
                self._index * count + i + 1,
                service,
                certificate,
                [*joining, f'--process_id={i}'] if joining else [],
            )
            for i, member in enumerate(members)
        ]
        while not ray.wait(running, timeout=_LOOK_SECONDS)[0]:
            if self._leaving.is_set():
                for member in members:
                    member.leave.remote()
                break
        # The others end with the first, in their own time.
        began = time.monotonic()
        while len(ray.wait(running, num_returns=count, timeout=_LOOK_SECONDS)[0]) < count:
            if time.monotonic() - began > _LEAVING_SECONDS:
                return Outcome(DETACHED, 'it did not end in time')
        outcomes: list[Outcome] = ray.get(running)
        errors = [each for each in outcomes if each.code not in (0, DETACHED)]
        return next(iter([*errors, outcomes[0]]))


@contextlib.contextmanager
def _placed(crew: Crew, name: str) -> Iterator[PlacementGroup]:
    with contextlib.suppress(ValueError):  # That of a coordinator that was lost.
        remove_placement_group(get_placement_group(name))
    group = placement_group(crew.bundles, crew.strategy, name)
    try:
        yield group
    finally:
        with contextlib.suppress(RayError):
            remove_placement_group(group)
