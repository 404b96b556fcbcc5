"""The trials of simulated studies: real directories and checkpoints, and training by a formula."""

import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from paxtune.running.runner import Reports, Runner, Running
from paxtune.running.trial_spec import TrialSpec
from paxtune.schedulers.base import Unit
from paxtune.search_space.space import Space
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import attempt_directory
from paxtune.study.workload import RunnerWorkload
from tests.simulation.checkpoints import newest, save
from tests.simulation.faults import Draws, Faults, Settings
from tests.simulation.process import Host, Process
from tests.simulation.scheduler import Scheduler
from trainer.loop.report import Interrupted, Report

STEPS, EVERY = 8, 2


def truth(decisions: Mapping[str, Any], step: int) -> float:
    """The loss of a trial at a step."""
    a, b = (float(decisions[name]) for name in ('a', 'b'))
    return round((a - 0.3) ** 2 + 0.1 * b + 1.0 / step, 12)


class Simulated(RunnerWorkload):
    """The value that is searched."""

    a: float = 0.0
    b: float = 0.0

    def runner(self) -> Runner:
        return FormulaRunner()

    def max_resource(
        self, space: Space, trials: Sequence[Trial], trial: Trial, unit: Unit
    ) -> float | None:
        return float(STEPS)


class FormulaRunner(Runner):
    """Trains as `paxtune.simulate.replay_workload.TableRunner` does."""

    def prepare(self, study: Study, trial: RunningTrial) -> Running:
        return functools.partial(self._run, study, trial)

    def _run(
        self, study: Study, trial: RunningTrial, should_interrupt: Callable[[], bool]
    ) -> Reports:
        world = World.current
        home = Path(attempt_directory(study.directory, trial.view))
        where = f'{trial.id}.{trial.view.attempt}'
        with world.ledger.writing(home):
            folder = Path(TrialSpec.of(study, trial.view).begin())
            state, checkpoint = newest(world, folder)
            begun, done = trial.continues_from, state.step
            # A process that has lost an ended trial finds no checkpoints any more.
            is_held = world.ledger.has(world.process, trial.id)
            if is_held and begun is not None and done < begun[1]:
                world.violate('checkpoint', f'trial {trial.id} begins at {done}, not {begun}')
            if done:
                yield Report(done, state.metrics, checkpoint, done, done == STEPS)
                if done < STEPS and should_interrupt():
                    raise Interrupted(done)
            for step in range(done + 1, STEPS + 1):
                world.scheduler.sleep(world.pace * world.draws.uniform(0.3, 3.0, 'step', where))
                if step % EVERY == 0:
                    world.ledger.writes(home)
                    loss = truth(trial.decisions, step)
                    state = state.after(trial.id, step, {'loss': loss})
                    world.ledger.trained(trial, state)
                    checkpoint = save(world, state, folder)
                    yield Report(step, state.metrics, checkpoint, done, step == STEPS)
                if step < STEPS and should_interrupt():
                    raise Interrupted(state.step)


_EPOCH = 1.75e9


class World:
    """Everything that the parts of a simulation share.

    Attributes:
        current: the world that is simulated now.
        directory: a real one, for the database and the files of trials.
        trace: lines about the events.
        violations: (kind, text) of each.
        service: the service that clients call.
        ledger: checks commits and replies.
        files: the simulated disk.
        waiting: checks who waits for a trial.
        pace: how many times as long as usual a step takes.
        is_local: processes share a directory, and there is no service.
        is_over: no more faults happen.
    """

    current: ClassVar['World']
    service: Any = None
    ledger: Any = None
    files: Any = None
    waiting: Any = None
    pace = 1.0
    is_local = False
    is_over = False

    def __init__(
        self, seed: int, settings: Settings, directory: Path, allowed: frozenset[str] | None
    ) -> None:
        self.directory = directory
        self.draws = Draws(seed)
        self.faults = Faults(settings, self.draws, allowed)
        self.trace: list[str] = []
        self.violations: list[tuple[str, str]] = []
        self.processes: list[Process] = []
        outside = Process(self, 'simulation', Host('simulation'))
        self.scheduler = Scheduler(outside)

    @property
    def database(self) -> Path:
        """The file of the study."""
        return self.directory / ('study/study.db' if self.is_local else 'service/study.db')

    @property
    def study(self) -> str:
        """The name of the study in its database."""
        return 'study' if self.is_local else 'toys'

    @property
    def now(self) -> float:
        """The virtual time, in seconds, which only grows."""
        return self.scheduler.now

    @property
    def process(self) -> Process:
        """The process whose code runs."""
        process = self.scheduler.context.owner
        assert isinstance(process, Process)
        return process

    @property
    def wall_time(self) -> float:
        """The wall-clock time of the machine whose code runs: it may step."""
        return _EPOCH + self.now + self.process.host.clock_step

    def say(self, *parts: object) -> None:
        """Adds a line to the trace."""
        text = ' '.join(map(str, parts)).replace(f'{self.directory}/', '')
        self.trace.append(f'{self.now:9.2f}  {text}')

    def violate(self, kind: str, text: str) -> None:
        """Notes that an invariant is violated."""
        self.violations.append((kind, text))
        self.say('VIOLATION', kind, text)

    def violate_by(self, kind: str, who: str, error: BaseException) -> None:
        """Notes an error that no code may raise."""
        frames = ''.join(traceback.format_tb(error.__traceback__)[-6:])
        self.violate(kind, f'{who}: {type(error).__name__}: {error}\n{frames}')

    def happens(self, kind: str, *where: str) -> bool:
        """Returns True if a point fault happens now."""
        if self.is_over or not self.faults.happens(kind, self.now, *where):
            return False
        self.say('FAULT', kind, *where)
        return True

    def close(self) -> None:
        """Ends all processes, except for that of the simulation."""
        for process in self.processes[1:]:
            process.on_exit.clear()
            process.exit(None)
