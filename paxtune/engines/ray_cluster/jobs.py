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

from paxtune.engines.cluster_worker import Outcome
from paxtune.engines.ray_cluster.member import Member
from paxtune.engines.ray_cluster.worker_group import WorkerGroup
from paxtune.running.supervisor import DETACHED, STOPPED
from paxtune.service.address import Service

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_WAITING_SECONDS = 20.0
_LEAVING_SECONDS = 300.0


class RayJobs:
    """Jobs on Ray: a placement group each, and an actor for each process of the worker.

    Until Ray finds room for a job, its demand is visible to Ray's autoscaler.

    Attributes:
        group: the workers.
        name: of the group; the names of its placement groups begin with it.
        service: keeps the study.
        certificate: of the service, PEM.
        leaving: set once workers are to save their trials and end.
        withdrawn: set once jobs that wait for room are not needed.
    """

    def __init__(self, group: WorkerGroup, name: str, service: Service, certificate: str) -> None:
        self.group, self.name = group, name
        self.service, self.certificate = service, certificate
        self.leaving, self.withdrawn = threading.Event(), threading.Event()
        self._jobs: dict[str, _Job] = {}

    @property
    def waiting(self) -> int:
        """The number of jobs that have waited for room on the cluster, for a while."""
        return sum(job.is_waiting for job in list(self._jobs.values()))

    def submit(self, count: int) -> set[str]:
        """Starts jobs in free places. Each place, from 1, has one job at a time."""
        places = map(str, range(1, self.group.count + 1))
        free = [each for each in places if each not in self._jobs][:count]
        for place in free:
            self._jobs[place] = _Job(self, int(place) - 1)
            self._jobs[place].start()
        return set(free)

    def live(self) -> set[str]:
        """Lists the places whose jobs have not ended."""
        return {place for place, job in self._jobs.items() if job.is_alive()}

    def outcomes(self) -> dict[str, Outcome]:
        """Takes the outcomes of jobs that have ended, by place."""
        ended = self._jobs.keys() - self.live()
        return {place: self._jobs.pop(place).outcome for place in ended}

    def leave(self) -> None:
        """Lets workers save their trials and end."""
        self.leaving.set()

    def withdraw(self) -> None:
        """Takes the jobs back that wait for room."""
        self.withdrawn.set()

    def cancel(self) -> None:
        """Lets workers save their trials, and waits for their ends."""
        self.leaving.set()
        for job in self._jobs.values():
            job.join()


class _Job(threading.Thread):
    """Runs one worker. A lost node, or a killed actor, loses all processes of the worker.

    Attributes:
        outcome: the end of the worker.
        is_waiting: whether it has waited for room on the cluster, for a while.
    """

    def __init__(self, jobs: RayJobs, index: int) -> None:
        super().__init__(name=f'{jobs.name}-{index + 1}', daemon=True)
        self._jobs, self._group, self._index = jobs, jobs.group, index
        self.outcome = Outcome(0)
        self.is_waiting = False

    def run(self) -> None:
        try:
            with _placed(self._group, self.name) as placement:
                self.outcome = self._run_members(placement)
        except Exception as error:
            _LOG.exception('worker %d', self._index + 1)
            self.outcome = Outcome(STOPPED, f'{type(error).__name__}: {error}')

    def _run_members(self, placement: PlacementGroup) -> Outcome:
        """Runs the processes of the worker until one of them ends."""
        actor = ray.remote(Member)
        members = [
            actor.options(
                **self._group.actor_options,
                max_concurrency=2,  # `leave` while it runs.
                scheduling_strategy=PlacementGroupSchedulingStrategy(placement, i),
            ).remote()
            for i in range(self._group.worker.processes)
        ]
        addresses: list[str] = []
        try:
            addresses = self._addresses(members, placement)
            return self._outcome(members, addresses[0]) if addresses else Outcome(DETACHED)
        except RayTaskError:
            raise
        except RayError as error:
            if not addresses:
                return Outcome(DETACHED, f'it did not start: {error}', True)
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
                if self._jobs.leaving.is_set() or self._jobs.withdrawn.is_set():
                    return []
                is_late = time.monotonic() - began > _WAITING_SECONDS
                self.is_waiting = is_late and _state(placement) != 'CREATED'
        finally:
            self.is_waiting = False
        found: list[str] = ray.get(waiting)
        return found

    def _outcome(self, members: list[Any], coordinator: str) -> Outcome:
        count = len(members)
        joining = [f'--coordinator={coordinator}', f'--num_processes={count}'] if count > 1 else []
        running = [
            member.run.remote(
                self._group.worker,
                self._index * count + i + 1,
                self._jobs.service,
                self._jobs.certificate,
                [*joining, f'--process_id={i}'] if joining else [],
            )
            for i, member in enumerate(members)
        ]
        while not ray.wait(running, timeout=_LOOK_SECONDS)[0]:
            if self._jobs.leaving.is_set():
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
