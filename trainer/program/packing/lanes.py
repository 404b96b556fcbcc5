"""Runs in threads of one process, which take turns and do their train steps together."""

import collections
import contextlib
import functools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from trainer.metrics import Metrics
from trainer.program.packing.packing import Mode, Pack, PackedRun
from trainer.program.packing.place import Alone
from trainer.program.packing.stepper import Stepper
from trainer.program.program import Program
from trainer.program.step_functions import Values
from trainer.runtime.wall_clock import START_UP, STEPS, WallClock
from trainer.state import TrainState

_KEPT_PACKS = 16
_IDLE_STEPS = 16  # Steps of other lanes until an idle lane looks for a run again.


class _Request:
    """A lane that waits: for its next step, or, without a run, for steps of other lanes."""

    def __init__(self, run: 'PackedRun | None' = None, batch: Any = None, seconds: float = 0.0):
        self.run, self.batch, self.seconds = run, batch, seconds
        self.steps_left = _IDLE_STEPS if seconds else 0
        self.until = time.monotonic() + seconds
        self.metrics: Metrics | None = None
        self.error: Exception | None = None


class Lanes:
    """Threads of this process that train runs, one thread at a time.

    A lane has its turn until its run wants to do a step with others, or it waits. When all lanes
    want that, the runs of each program do their step together: see `packing.Pack`. A run that gains
    nothing by company goes on alone, while the other lanes wait. Turns go in the order of the
    lanes. So nothing must be safe to use by several threads; and where packing is not measured, the
    result depends on no timing.

    Attributes:
        count: number of lanes.
        mode: when runs train as one program.
    """

    def __init__(
        self, count: int, mode: Mode, is_shared: bool = False, patience: float | None = None
    ) -> None:
        """Makes lanes.

        Args:
            count: number of lanes.
            mode: when runs train as one program.
            is_shared: other processes take runs of the same study, so a lane without a run waits
                for as long as it says, in place of 16 steps of the others.
            patience: as for `Pack`.
        """
        self.count, self.mode, self._is_shared = count, mode, is_shared
        self._patience = patience
        self._changed = threading.Condition()
        self._turn = 0
        self._here = set(range(count))
        self._requests: dict[int, _Request] = {}
        self._packs: collections.OrderedDict[Program, Pack] = collections.OrderedDict()
        self._seconds, self._read = dict.fromkeys(range(count), 0.0), time.perf_counter()
        self._clocks: dict[int, WallClock] = {}
        self._sharing: dict[int, list[int]] = {}  # The lanes of the last step, by lane.

    @contextlib.contextmanager
    def lane(self, index: int) -> Iterator['Lane']:
        """Context manager in whose thread a lane works; each of the lanes needs one."""
        lane = Lane(self, index)
        with self._changed:
            self._changed.wait_for(lambda: self._turn == index)
        try:
            yield lane
        finally:
            lane.end_run()
            with self._changed:
                self._charge(index)
                self._here.remove(index)
                self._pass_on(index)

    def wait(self, index: int, request: _Request) -> None:
        """Ends the turn of a lane, until its request is granted.

        Raises:
            Exception: the step of its run has failed.
        """
        with self._changed:
            self._charge(index)
            self._requests[index] = request
            self._pass_on(index)
            self._changed.wait_for(lambda: self._turn == index)
        if request.error is not None:
            raise request.error

    def goes_alone(self, index: int, run: 'PackedRun') -> bool:
        """Returns True if a run is to do its next step at once, in the turn of its lane."""
        if self._pack(run.program).wants_company:
            return False
        self._sharing.pop(index, None)
        return True

    def clock(self, index: int) -> WallClock:
        """Makes the clock of a lane: all clocks add up to the time that has passed."""
        read = functools.partial(self._read_clock, index)
        clock = self._clocks[index] = WallClock(START_UP, read=read)
        return clock

    def _read_clock(self, index: int) -> float:
        with self._changed:
            if self._turn == index:
                self._charge(index)
            return self._seconds[index]

    def _charge(self, index: int, lanes: Sequence[int] = ()) -> None:
        """Divides the time that has passed among lanes.

        By default they are those of the last step, where a lane waits for its result. All else that
        it does in its turn is its own.
        """
        now = time.perf_counter()
        clock = self._clocks.get(index)
        if not lanes and clock is not None and clock.name == STEPS:
            lanes = self._sharing.get(index, ())
        shared = [each for each in lanes if each in self._here] or [index]
        for each in shared:
            self._seconds[each] += (now - self._read) / len(shared)
        self._read = now

    def _pass_on(self, index: int) -> None:
        waiting = sorted(self._here - self._requests.keys())
        if not waiting and self._here:
            self._do_steps()
            waiting = sorted(self._here - self._requests.keys())
        self._turn = next((each for each in waiting if each > index), min(waiting, default=-1))
        self._changed.notify_all()

    def _do_steps(self) -> None:
        requests = dict(sorted(self._requests.items()))
        self._requests.clear()
        groups: dict[Program | None, list[int]] = {}
        for index, request in requests.items():
            program = None if request.run is None else request.run.program
            groups.setdefault(program, []).append(index)
        for program, lanes in groups.items():
            group = [requests[index] for index in lanes]
            if program is not None:
                self._do_step(self._pack(program), group)
            elif len(groups) == 1:
                time.sleep(min(request.seconds for request in group))
            else:
                both = zip(lanes, group, strict=True)
                self._requests |= {i: each for i, each in both if self._waits_on(each)}
            self._sharing |= dict.fromkeys(lanes, lanes)
            self._charge(lanes[0], lanes)

    def _waits_on(self, request: _Request) -> bool:
        """Counts a step of other lanes; returns True if a lane without a run waits for more."""
        request.steps_left -= 1
        if self._is_shared:
            return time.monotonic() < request.until
        return request.steps_left > 0

    def _do_step(self, pack: Pack, group: list[_Request]) -> None:
        runs = [request.run for request in group if request.run is not None]
        try:
            found = pack.step(runs, [request.batch for request in group])
        except Exception as error:
            for request in group:
                request.error = error
            return
        for request, metrics in zip(group, found, strict=True):
            request.metrics = metrics

    def _pack(self, program: Program) -> Pack:
        if program not in self._packs:
            empty = [other for other, pack in self._packs.items() if pack.is_empty]
            for other in empty[: max(0, len(self._packs) - _KEPT_PACKS)]:
                del self._packs[other]
            self._packs[program] = Pack(program, self.count, self.mode, self._patience)
        self._packs.move_to_end(program)
        return self._packs[program]


class Lane(Alone):
    """The place of one run in `Lanes`: it begins another run when the first has ended."""

    def __init__(self, lanes: Lanes, index: int) -> None:
        self._lanes, self._index = lanes, index
        self._run: LaneRun | None = None

    def stepper(
        self, program: Program, state: TrainState, random_key: jax.Array, values: Values
    ) -> 'LaneRun':
        self.end_run()
        self._run = LaneRun(self, self._index, program, state, random_key, values)
        return self._run

    def end_run(self) -> None:
        """Frees the arrays of the last run."""
        if self._run is not None and self._run.pack is not None:
            self._run.pack.remove(self._run)
        self._run = None

    def do(self, run: PackedRun, batch: Mapping[str, jax.Array]) -> Metrics:
        """Does a step of a run: alone, or together with the other lanes."""
        if self._lanes.goes_alone(self._index, run):
            run.take_state()
            return Stepper.step(run, batch)
        request = _Request(run, batch)
        self._lanes.wait(self._index, request)
        assert request.metrics is not None
        return request.metrics

    def wait(self, seconds: float) -> None:
        self.end_run()
        self._lanes.wait(self._index, _Request(seconds=seconds))

    def give_way(self) -> None:
        self.end_run()
        self._lanes.wait(self._index, _Request())

    def clock(self) -> WallClock:
        return self._lanes.clock(self._index)


class LaneRun(PackedRun):
    """The state of a run in a lane, and its train steps, which lanes may take together."""

    def __init__(self, lane: Lane, row: int, *args: Any) -> None:
        super().__init__(row, *args)
        self._lane = lane

    @property
    def can_do_several(self) -> bool:
        return False

    def step(self, batch: Mapping[str, jax.Array], count: int = 1) -> Metrics:
        assert count == 1
        return self._lane.do(self, batch)
