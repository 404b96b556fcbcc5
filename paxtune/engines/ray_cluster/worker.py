import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from paxtune.engines.outcome import Outcome
from paxtune.engines.ray_cluster.member import Member
from paxtune.engines.ray_cluster.worker_group import WorkerGroup
from paxtune.running.supervisor import DETACHED, STOPPED
from paxtune.service.address import Service

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_PAUSE_SECONDS = 1.0
_WAITING_SECONDS = 20.0
_LEAVING_SECONDS = 300.0
_MAX_FALSE_STARTS = 3


class Worker(threading.Thread):
    """Keeps one worker running: a placement group, and an actor for each process of the worker.

    A lost node, or a killed actor, loses all processes of the worker. They start again where Ray
    finds room; until then their demand is visible to its autoscaler.

    Attributes:
        outcome: the end of the worker; None while it runs.
        is_waiting: whether it has waited for room on the cluster, for a while.
    """

    def __init__(
        self,
        group: WorkerGroup,
        index: int,
        name: str,
        service: Service,
        certificate: str,
        leaving: threading.Event,
    ) -> None:
        """Prepares a worker.

        Args:
            index: of the worker, from 0.
            name: of its placement group.
            service: keeps the study.
            certificate: of the service, PEM.
            leaving: set to end the workers of the group; an error of one ends all.
        """
        super().__init__(name=name, daemon=True)
        self._group, self._index = group, index
        self._service, self._certificate, self._leaving = service, certificate, leaving
        self.outcome: Outcome | None = None
        self.is_waiting = False

    def run(self) -> None:
        try:
            with _placed(self._group, self.name) as placement:
                self.outcome = self._keep(placement)
        except Exception as error:
            _LOG.exception('worker %d', self._index + 1)
            self.outcome = Outcome(STOPPED, f'{type(error).__name__}: {error}')
        if self.outcome.code:
            self._leaving.set()

    def _keep(self, placement: PlacementGroup) -> Outcome:
        false_starts = 0
        while not self._leaving.is_set():
            outcome = self._once(placement)
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

    def _once(self, placement: PlacementGroup) -> Outcome:
        """Runs the processes of the worker until one of them ends."""
        actor = ray.remote(Member)
        members = [
            actor.options(
                **self._group.actor_options,
                max_concurrency=2,  # `leave` while it runs.
                scheduling_strategy=PlacementGroupSchedulingStrategy(placement, i),
            ).remote()
            for i in range(self._group.processes)
        ]
        addresses: list[str] = []
        try:
            addresses = self._addresses(members, placement)
            return self._run(members, addresses[0]) if addresses else Outcome(0)
        except RayTaskError:
            raise
        except RayError as error:
            if not addresses:
                return Outcome(DETACHED, f'it did not start: {error}', 1)
            return Outcome(DETACHED, f'it was lost: {str(error).splitlines()[0]}')
        finally:
            for member in members:
                ray.kill(member)

    def _addresses(self, members: list[Any], placement: PlacementGroup) -> list[str]:
        """Waits until all processes have a place; none if the worker is to leave before."""
        waiting = [member.address.remote() for member in members]
        count, began = len(waiting), time.monotonic()
        try:
            while len(ray.wait(waiting, num_returns=count, timeout=_LOOK_SECONDS)[0]) < count:
                if self._leaving.is_set():
                    return []
                is_late = time.monotonic() - began > _WAITING_SECONDS
                self.is_waiting = is_late and _state(placement) != 'CREATED'
        finally:
            self.is_waiting = False
        found: list[str] = ray.get(waiting)
        return found

    def _run(self, members: list[Any], coordinator: str) -> Outcome:
        count = len(members)
        joining = [f'--coordinator={coordinator}', f'--num_processes={count}'] if count > 1 else []
        running = [
            member.run.remote(
                self._group,
                self._index * count + i + 1,
                self._service,
                self._certificate,
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


def _state(placement: PlacementGroup) -> str:
    state: str = placement_group_table(placement)['state']
    return state


@contextlib.contextmanager
def _placed(group: WorkerGroup, name: str) -> Iterator[PlacementGroup]:
    with contextlib.suppress(ValueError):  # Its coordinator was lost.
        remove_placement_group(get_placement_group(name))
    placement = placement_group(group.bundles, group.strategy, name)
    try:
        yield placement
    finally:
        with contextlib.suppress(RayError):
            remove_placement_group(placement)
