"""People who edit the study while it runs, as `python -m paxtune.studies` does.

They also search in the database of the service, which has to refuse it, and write a trial over
another one.
"""

import contextlib
from collections.abc import Sequence

import pyglove as pg

from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward
from paxtune.service.remote_store import RemoteStore
from paxtune.service.schema import RequestRejectedError
from paxtune.storage.open_study import join_study, load_study, open_study
from paxtune.study import stop_requests
from paxtune.study.record import Status
from paxtune.study.study import Study
from paxtune.study.transitions import DetachedError, IllegalTransition
from tests.simulation.ledger import by_hand
from tests.simulation.machine import SERVICE
from tests.simulation.process import Host, Process
from tests.simulation.world import World
from trainer.symbolic.errors import UserError


class Person:
    """Runs commands one after another, each of them once.

    Attributes:
        is_done: all have ended.
    """

    def __init__(self, world: World, edits: Sequence[str]) -> None:
        self._world, self._edits, self._host = world, list(edits), Host('desk')
        self.is_done = not edits
        self._plan()

    def _plan(self) -> None:
        if self._edits:
            wait = self._world.draws.uniform(5.0, 60.0, 'person')
            self._world.scheduler.at(wait, self._start)
        self.is_done = not self._edits

    def _start(self) -> None:
        edit = self._edits.pop(0)
        process = Process(self._world, f'{edit}.{len(self._edits)}', self._host)
        process.on_exit.append(self._plan)
        process.start(lambda: self._run(edit))

    def _run(self, edit: str) -> int:
        world = self._world
        try:
            if edit == 'search':
                return self._search()
            with contextlib.closing(self._opened()) as study:
                if edit == 'pause':
                    stop_requests.request_pause(study.store)
                else:
                    self._edit(edit, study)
        except (DetachedError, RequestRejectedError, UserError) as error:
            world.say(edit, 'ends:', str(error).split('\n')[0])
            return 2
        return 0

    def _opened(self) -> Study:
        world = self._world
        if world.is_local:
            return load_study(world.database.parent, read_only=False)
        return join_study(RemoteStore(SERVICE.client()), None)

    def _edit(self, edit: str, study: Study) -> None:
        world, trials = self._world, study.trials
        if edit == 'add':
            study.add({'a': world.draws.uniform(0.0, 1.0, 'added')})
            return
        if edit == 'mistake':
            study.store.apply(1, lambda *_: trials[-1].record)
            return
        if edit == 'promote':
            self._promote(study)
            return
        status = {'retry': Status.COMPLETED, 'stop': Status.ACTIVE}[edit]
        found = [trial.id for trial in trials if trial.status is status]
        if not found:
            return
        number = found[int(world.draws.share('edited') * len(found))]
        if edit == 'retry':
            study.retry(number)
        else:
            stop_requests.request_stop(study.store, number)

    def _promote(self, study: Study) -> None:
        """Ends one of the pauses after a while, in which others may have ended it."""
        world, paused = self._world, [t for t in study.trials if t.status is Status.PAUSED]
        if paused:
            chosen = paused[int(world.draws.share('promoted') * len(paused))]
            opened = study.open_trial(chosen.id)
            world.scheduler.sleep(world.draws.uniform(0.0, 40.0, 'hesitation'))
            with contextlib.suppress(IllegalTransition):
                opened.promote(by_hand(chosen.record.paused_at))

    def _search(self) -> int:
        """Begins a local search in the database of the service."""
        world = self._world
        directory = world.database.parent
        search = Search(MetricReward('minimize', 'loss'), Budget(1))
        with open_study(directory, pg.Dict(x=pg.floatv(0.0, 1.0)), search=search):
            if world.service.process.is_alive:
                world.violate('two writers', f'{world.process.name} searches beside the service')
        return 0
