"""The studies that are simulated."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pyglove as pg

from paxtune.algorithms import RandomSearch
from paxtune.config.budget import Budget
from paxtune.config.faults import Faults
from paxtune.config.retention import Retention
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import Hyperband, PopulationBasedTraining, PromotingAsha, Scheduler
from tests.simulation.world import Simulated


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A study and the machines that work on it.

    Attributes:
        scheduler: its scheduler; None to train all trials to their ends.
        num_trials: its budget.
        machines: the number of machines.
        workers: the number of workers of each.
        edits: what people run meanwhile: see `people`.
        fork: whether it begins with the trials of another study: --fork_study.
        max_attempts: see `paxtune.config.faults.Faults`.
        pace: how many times as long as usual a step takes: a trial may outlast several leases.
        is_local: whether processes share a directory, without a service.
        is_of_vizier: whether the machines are clients of Vizier's API.
        is_reproducible: whether faults and the number of workers leave its result alone.
    """

    name: str
    scheduler: Scheduler | None = None
    num_trials: int = 12
    machines: int = 3
    workers: int = 1
    edits: tuple[str, ...] = ()
    fork: bool = False
    max_attempts: int = 3
    pace: float = 1.0
    is_local: bool = False
    is_of_vizier: bool = False
    is_reproducible: bool = False

    def value(self) -> Any:
        """Makes the value that is searched."""
        search = Search(
            MetricReward('minimize', 'loss'),
            Budget(self.num_trials),
            RandomSearch(),
            self.scheduler,
            faults=Faults(max_attempts=self.max_attempts),
            retention=Retention(best=1),
        )
        return Simulated(search=search, a=pg.floatv(0.0, 1.0), b=pg.floatv(0.0, 5.0))


_ASHA = PromotingAsha(min_resource=2, reduction_factor=2)
_POPULATION = PopulationBasedTraining(population_size=5, interval=2, quantile=0.4)

SCENARIOS = (
    Scenario('plain', is_reproducible=True),
    Scenario('promotion', _ASHA),
    Scenario('population', _POPULATION, num_trials=11, is_reproducible=True),
    Scenario('forked study', num_trials=14, fork=True),
    Scenario(
        'edits', edits=('add', 'retry', 'stop', 'add', 'pause', 'search', 'retry', 'mistake', 'add')
    ),
    Scenario('hyperband', Hyperband(min_resource=2, reduction_factor=2), num_trials=10),
    Scenario('one attempt', machines=2, workers=2, max_attempts=1, is_reproducible=True),
    Scenario(
        'edited promotion',
        _ASHA,
        edits=(
            'add',
            'promote',
            'pause',
            'promote',
            'mistake',
            'add',
            'promote',
            'retry',
            'search',
            'promote',
            'stop',
        ),
    ),
    Scenario('directory', num_trials=20, is_local=True, is_reproducible=True),
    Scenario(
        'edited directory',
        _ASHA,
        is_local=True,
        edits=('add', 'promote', 'retry', 'pause', 'add', 'promote', 'retry'),
    ),
    Scenario('long trials', num_trials=5, pace=8.0, is_reproducible=True),
    Scenario('clients of Vizier', num_trials=30, is_of_vizier=True),
)


REGRESSIONS: Mapping[int, str] = {
    34: 'a trial whose fork had gone further looked for the checkpoint of that fork',
    242: 'a trial that continued gave its old checkpoint to the second attempt of its fork',
    371: 'a task of the simulation ended the one that had resumed it',
    607: 'a service that stopped just after its start took trials from living workers',
    10009: 'SIGCONT made the checks of leases forget that a worker had been stopped',
    101658: 'a promotion that was decided from one pause ended a later one',
    100242: 'the checks of leases took a loss for new that a stall had delayed',
    962188: 'a person who searched on a full disk did not end as a command does',
    1731: 'a search that began on a full disk did not end as a command does (forked study)',
    2368: 'a search that began on a full disk did not end as a command does',
}
"""The reason, by seed: of the first eight scenarios, which there were at that time."""

EIGHT = SCENARIOS[:8]
