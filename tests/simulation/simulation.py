"""The simulation of one seed, from the first process to the check of the study at its end."""

import collections
import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import join_study, open_study
from paxtune.study.record import Status
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import attempt_directory
from tests.simulation import disturbances, seams
from tests.simulation.checkpoints import newest
from tests.simulation.faults import NONE, Settings
from tests.simulation.files import Files
from tests.simulation.ledger import Ledger
from tests.simulation.local import LocalMachine, check_recovery
from tests.simulation.machine import Machine
from tests.simulation.people import Person
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.service import Service
from tests.simulation.vizier import VizierClient, VizierLedger, check_trials
from tests.simulation.waiting import Waiting
from tests.simulation.world import EVERY, STEPS, World, truth

_MEMORY = '/dev/shm'
_IMPORTED = 3
_MAX_VIOLATIONS = 10  # The simulation ends then.


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a simulation.

    Attributes:
        violations: (kind, text) of each.
        faults: the names of the faults that happened, in order.
        counts: the number of faults of each kind.
        trace: lines about all events.
        results: what the study came to, trial by trial.
        seconds: the virtual time at its end.
    """

    seed: int
    scenario: str
    violations: list[tuple[str, str]]
    faults: list[str]
    counts: collections.Counter[str]
    trace: list[str]
    results: list[tuple[object, ...]]
    seconds: float

    @property
    def kinds(self) -> set[str]:
        """The kinds of its violations."""
        return {kind for kind, _ in self.violations}


def simulate(
    seed: int,
    settings: Settings | None = None,
    *,
    scenario: Scenario | None = None,
    allowed: frozenset[str] | None = None,
) -> Outcome:
    """Simulates a study.

    Args:
        seed: determines the scenario, the times and the faults.
        settings: of the faults; the defaults without any.
        scenario: another one than that of the seed.
        allowed: names of the only faults that may happen; None allows all.
    """
    scenario = scenario or SCENARIOS[seed % len(SCENARIOS)]
    settings = settings or Settings()
    expected = None
    if scenario.is_reproducible and settings is not NONE:
        expected = undisturbed(scenario.name)
    memory = _MEMORY if os.path.isdir(_MEMORY) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix='simulation-') as directory:
        world = World(seed, settings, Path(directory), allowed)
        world.files, world.waiting = Files(world), Waiting(world)
        world.ledger = VizierLedger(world) if scenario.is_of_vizier else Ledger(world)
        world.pace, world.is_local = scenario.pace, scenario.is_local
        with seams.installed(world), contextlib.closing(world.ledger):
            results = _run(world, scenario, expected)
    return Outcome(
        seed,
        scenario.name,
        world.violations,
        world.faults.happened,
        world.faults.counts,
        world.trace,
        results,
        world.now,
    )


def _run(
    world: World, scenario: Scenario, expected: list[tuple[object, ...]] | None
) -> list[tuple[object, ...]]:
    kind: Callable[..., Machine] = LocalMachine if scenario.is_local else Machine
    if scenario.is_of_vizier:
        kind = functools.partial(VizierClient, scenario.num_trials)
    if not scenario.is_local:
        world.service = Service(world)
    value = scenario.value()
    fork = _other_study(world, scenario) if scenario.fork else None
    machines = [kind(world, i + 1, value, scenario.workers, fork) for i in range(scenario.machines)]
    person = Person(world, scenario.edits)
    disturbances.plan(world, machines)

    def is_over() -> bool:
        if not (person.is_done and all(each.is_done for each in machines)):
            return False
        if not world.ledger.has_ended():  # Trials were added, so a person searches again.
            machines[0].start()
            return False
        return True

    horizon = world.faults.settings.horizon
    world.scheduler.run(horizon, lambda: is_over() or len(world.violations) >= _MAX_VIOLATIONS)
    if not is_over() and len(world.violations) < _MAX_VIOLATIONS:
        waiting = [each.name for each in machines if not each.is_done]
        world.violate('liveness', f'after {horizon:.0f} s these have not ended: {waiting}')
    world.close()
    world.is_over = True
    if scenario.is_of_vizier:
        return check_trials(world, scenario.num_trials + scenario.machines)
    with _read(world) as study:
        results = [_result(trial) for trial in study.trials]
        _check(world, scenario, study)
        if expected is not None:
            _compare(world, results, expected)
    if scenario.is_local:
        check_recovery(world)
    return results


def _other_study(world: World, scenario: Scenario) -> Path:
    """Makes a local study whose trials another one begins with."""
    directory = world.directory / 'other'
    value = dataclasses.replace(scenario, num_trials=_IMPORTED).value()
    with open_study(directory, value) as study:
        while (trial := study.ask()) is not None:
            for step in range(EVERY, STEPS + 1, EVERY):
                trial.report(step, {'loss': truth(trial.decisions, step)})
            study.tell(trial)
    return directory


@contextlib.contextmanager
def _read(world: World) -> Iterator[Study]:
    database = Database(world.database, read_only=True)
    with join_study(LocalStore(database, world.study), None) as study:
        yield study


def _check(world: World, scenario: Scenario, study: Study) -> None:
    trials = study.trials
    if [trial.id for trial in trials] != list(range(1, len(trials) + 1)):
        world.violate('number', f'the trials are {[trial.id for trial in trials]}')
    most = scenario.num_trials + len(scenario.edits)
    if len(trials) > most:
        world.violate('budget', f'{len(trials)} trials; at most {most}')
    for trial in trials:
        _check_trial(world, scenario, trial)
    _check_weights(world, study)


def _check_weights(world: World, study: Study) -> None:
    """Checks that retention has kept the weights of the best trial."""
    if (best := study.best) is None or best.lineage.is_imported:
        return
    home = Path(attempt_directory(world.directory / 'study', best))
    if newest(world, home)[0].step != STEPS:
        world.violate('retention', f'the weights of trial {best.id}, the best, are gone')


def _compare(
    world: World, results: list[tuple[object, ...]], expected: list[tuple[object, ...]]
) -> None:
    for now, then in zip(results, expected, strict=False):
        if now != then:
            world.violate('decisions', f'{now} is {then} in the undisturbed study')
    if len(results) != len(expected):
        world.violate('decisions', f'{len(results)} trials in place of {len(expected)}')


def _check_trial(world: World, scenario: Scenario, trial: Trial) -> None:
    if trial.status is Status.INFEASIBLE and 'stop' not in scenario.edits:
        world.violate('infeasible', f'trial {trial.id}: {trial.reason}')
    if not trial.is_terminal:
        world.violate('not ended', f'trial {trial.id} is {trial.status}')
    steps = [each.step for each in trial.measurements]
    origin = trial.lineage.forked_from
    first = EVERY if origin is None else origin[1]
    if steps != list(range(first, first + len(steps) * EVERY, EVERY)):
        world.violate('measurements', f'trial {trial.id}: steps {steps}')
    if trial.status is Status.COMPLETED and steps[-1:] != [STEPS]:
        world.violate('measurements', f'trial {trial.id} was completed at {steps}')


def _result(trial: Trial) -> tuple[object, ...]:
    lineage = trial.lineage
    decisions = tuple(round(float(each), 9) for each in trial.by_id.values())
    pauses = trial.record.pauses
    return trial.id, decisions, str(trial.status), trial.reward, pauses, lineage.forked_from


@functools.cache
def undisturbed(name: str) -> list[tuple[object, ...]]:
    """Returns what a scenario comes to on one machine, without a fault."""
    (scenario,) = (each for each in SCENARIOS if each.name == name)
    alone = dataclasses.replace(scenario, machines=1, workers=1)
    return simulate(0, NONE, scenario=alone).results


def shrink(names: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """Removes names, first many at once and then single ones, while `fails` returns True.

    Example:
        >>> shrink('abcdefgh', lambda kept: {'c', 'g'} <= set(kept))
        ['c', 'g']
    """
    kept, size = list(names), max(1, len(names) // 2)
    while size:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if fails(fewer):
                kept = fewer
            else:
                start += size
        size //= 2
    return kept
