"""The simulated world: the clock, draws, faults, the trace and the violations of a simulation."""

import traceback
from pathlib import Path
from typing import Any, ClassVar

from tests.simulation.draws import Draws
from tests.simulation.faults import Faults, Settings
from tests.simulation.process import Host, Process
from tests.simulation.scheduler import Scheduler

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
    """

    current: ClassVar['World']
    service: Any = None
    ledger: Any = None
    files: Any = None

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
        if not self.faults.happens(kind, self.now, *where):
            return False
        self.say('FAULT', kind, *where)
        return True

    def close(self) -> None:
        """Ends all processes, except for that of the simulation."""
        for process in self.processes[1:]:
            process.on_exit.clear()
            process.exit(None)
