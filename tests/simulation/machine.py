"""A simulated machine: the driver of `paxtune.search`, which supervises its workers."""

import contextlib
from pathlib import Path
from typing import Any

from paxtune import api, worker
from paxtune.engines.base import Job
from paxtune.engines.remote import Remote
from paxtune.engines.supervised import WorkerConfig
from paxtune.running.trial_errors import StudyStoppedError
from paxtune.running.tuner import Paused
from paxtune.running.worker_arguments import WorkerArguments
from paxtune.service.address import Service
from paxtune.service.remote_store import RemoteStore
from paxtune.study.plan import SearchPlan
from paxtune.study.transitions import DetachedError
from tests.simulation.process import Host, Process
from tests.simulation.world import World
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError

SERVICE = Service('service:1', 'toys')


class Machine:
    """A machine whose driver a person starts again until the study is done.

    Attributes:
        driver: the present process.
        workers: the processes that it has started, the living ones last.
        is_done: the driver has found the study done.
    """

    def __init__(
        self,
        world: World,
        number: int,
        value: Any,
        num_workers: int,
        fork_study: Path | None = None,
    ) -> None:
        """Starts a driver; `fork_study` is the --fork_study of its command."""
        self._world, self._value, self._config = world, value, WorkerConfig(num_workers)
        self._fork_study = fork_study
        self.host, self.name = Host(f'machine{number}'), f'm{number}'
        self._starts = 0
        self.workers: list[Process] = []
        self.start()

    @property
    def directory(self) -> Path:
        """The directory of the study, which all machines see."""
        return self._world.directory / 'study'

    def start(self) -> None:
        """Starts the driver."""
        self._starts += 1
        self.is_done = False
        name = f'{self.name}.driver{self._starts}'
        self.driver = Process(self._world, name, self.host, self)
        self.driver.on_exit.append(self._driver_ended)
        self.driver.start(self._drive)

    def _drive(self) -> int:
        world, engine = self._world, Remote(SERVICE, self._config)
        try:
            study, held = engine.open(self.directory, SearchPlan.compile(self._value), ())
            with held, contextlib.closing(study):
                job = Job(study, study.value.runner(), (), lambda: self.driver.is_interrupted)
                api.run_trials(engine, job, self._fork_study)
        except Paused as error:
            world.say(self.driver.name, 'pauses:', error)
            return 3
        except (StudyStoppedError, DetachedError, UserError) as error:
            world.say(self.driver.name, 'ends:', str(error).split('\n')[0])
            return 2
        self.is_done = True
        return 0

    def _driver_ended(self) -> None:
        world = self._world
        for each in self.workers:
            self._end_orphan(each)
        if not self.is_done:
            away = world.draws.uniform(1.0, 60.0, 'driver away', self.name)
            world.scheduler.at(away, self.start)

    def _end_orphan(self, orphan: Process) -> None:
        """Ends a worker whose driver has ended, once it runs."""
        world = self._world
        if not orphan.is_alive:
            return
        stopped = max(0.01, orphan.stopped_until - world.now)

        def end() -> None:
            if orphan.stopped_until > world.now:
                self._end_orphan(orphan)
            else:
                orphan.exit(75)

        world.scheduler.at(stopped, end)

    def start_worker(self, name: str, definition: str) -> Process:
        """Starts a worker, for the driver."""
        process = Process(self._world, name, self.host, self)
        self.workers = [*(each for each in self.workers if each.is_alive), process]
        process.start(lambda: self._work(name, definition))
        return process

    def _work(self, name: str, definition: str) -> int:
        world = self._world
        world.scheduler.sleep(world.draws.uniform(1.0, 4.0, 'start', self.name))
        client = SERVICE.client()
        try:
            client.connect(worker.PATIENCE_SECONDS)
            directory: JobPath = self.directory
            log: Any = _Log()
            work = WorkerArguments(definition)
            return worker.run(RemoteStore(client, name), directory, log, work)
        except UserError as error:
            world.say(name, 'ends:', str(error).split('\n')[0])
            return 2

    def die(self) -> None:
        """Ends all processes at once, as a power cut does: files may be torn."""
        self._world.files.lose_unsynced(self.host)
        own = self._world.process
        # The one that calls this ends last: its code goes no further.
        for each in sorted([*self.workers, self.driver], key=lambda process: process is own):
            each.exit(-9)


class _Log:
    """The structured log of a worker: only its context is used."""

    def __init__(self) -> None:
        self.context: dict[str, Any] = {}
