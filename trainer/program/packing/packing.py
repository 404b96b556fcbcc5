"""Several runs of one program, trained as one program under `jax.vmap`."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from absl import logging

from trainer.metrics import Metrics
from trainer.program.costs import device_memory_limit
from trainer.program.packing.stepper import Stepper
from trainer.program.program import Program, memory_bytes, stacked
from trainer.runtime import pgle
from trainer.state import TrainState, frozen_of, with_frozen, without_frozen

Mode = Literal['always', 'measured']
"""When runs train as one program: wherever they can, or where measurements find it faster."""

_TIMED = 4  # Steps of each kind that are measured; the first of them is left out.
PATIENCE = {'cpu': 40.0, 'tpu': 40.0, 'gpu': 10.0}
"""Packing is tried once the steps have taken this many times the compile time, by backend.

Small runs leave a GPU idle, and pack well (`benchmarks/results/packing.md`); on a CPU few do. The
packed step takes about twice as long to compile. So a try in vain costs 5 %, on a GPU 20 %.
"""


class PackedRun(Stepper):
    """A run that may be a row of a pack.

    Attributes:
        row: of this run in the pack that has its state.
        pack: has the state; None while the run has it itself.
        is_apart: its frozen parameters are others than in its pack, so it trains alone.
    """

    def __init__(self, row: int, *args: Any) -> None:
        super().__init__(*args)
        self.row = row
        self.pack: Pack | None = None
        self.is_apart = False

    @property
    def state(self) -> TrainState:
        return self._state if self.pack is None else self.pack.state_of(self.row)

    def give_state(self) -> TrainState:
        """Hands the state over to a pack."""
        state, self._state = self._state, None  # type: ignore[assignment]
        return state

    def take_state(self) -> None:
        """Takes the state back from its pack."""
        if self.pack is not None:
            # The next step donates its state, and the pack may still use the frozen parameters.
            frozen = jax.tree.map(jnp.copy, frozen_of(self.state))
            self._state = with_frozen(without_frozen(self.state), frozen)
            self.pack.remove(self)


class Pack:
    """Runs of one program, whose states are the rows of one stacked state.

    One compiled step trains all rows. Frozen parameters beside adapters exist once; a run with
    other ones trains by itself. A run may leave, and another one take its row, between two steps. A
    row without a run repeats another run's work, and nothing reads it.

    Attributes:
        count: number of rows.
    """

    def __init__(
        self,
        program: Program,
        count: int,
        mode: Mode,
        patience: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        memory_limit: int | None = None,
    ) -> None:
        """Makes a pack without runs.

        Args:
            program: the program of all runs.
            count: number of rows.
            mode: when runs train as one program.
            patience: as in `PATIENCE`; None for the backend's.
            clock: returns the time, in seconds.
            memory_limit: bytes of a device that programs can use; None for those it states.
        """
        self.count = count
        self._memory_limit = device_memory_limit() if memory_limit is None else memory_limit
        self._program, self._choice = program, _Choice(program, mode, patience, clock)
        self._can_pack = True
        self._state: TrainState | None = None
        self._frozen: dict[Any, Any] = {}
        self._rows: set[int] = set()
        shardings = program.stacked_shardings
        self._spread = jax.jit(lambda state: stacked([state] * count), out_shardings=shardings)
        self._replace = jax.jit(
            lambda states, state, row: jax.tree.map(
                lambda leaf, new: leaf.at[row].set(new), states, state
            ),
            donate_argnums=0,
            out_shardings=shardings,
        )
        self._row = jax.jit(
            lambda states, row: jax.tree.map(lambda leaf: leaf[row], states),
            out_shardings=jax.tree.map(
                lambda leaf: leaf.sharding, without_frozen(program.abstract_state)
            ),
        )
        self._are_equal = jax.jit(
            lambda *trees: jnp.stack(jax.tree.leaves(jax.tree.map(jnp.array_equal, *trees))).all()
        )

    @property
    def wants_company(self) -> bool:
        """True unless its runs had better do their steps alone, one run after another."""
        return self._can_pack and self._choice.wants_company(self.count)

    @property
    def is_empty(self) -> bool:
        """Returns True if it has the state of no run."""
        return not self._rows

    def state_of(self, row: int) -> TrainState:
        """Copies the state of a row, all but the frozen parameters."""
        state: TrainState = self._row(self._state, self._program.replicated(jnp.int32(row)))
        return with_frozen(state, self._frozen)

    def remove(self, run: PackedRun) -> None:
        """Frees the row of a run that has ended, or that takes its state back."""
        run.pack = None
        self._rows.discard(run.row)
        if not self._rows:
            self._state, self._frozen = None, {}

    def step(self, runs: Sequence[PackedRun], batches: Sequence[Any]) -> list[Metrics]:
        """Does a step of each run, all at once or one after another."""
        is_packed = self._choice.is_packed(len(runs)) and self._compiled is not None
        do = self._together if is_packed else self._apart
        with self._choice.timed(is_packed, len(runs), lambda: self._wait_for(runs)):
            metrics = do(runs, batches)
        if len(runs) == 1:
            self._choice.put_off()
        if not self.wants_company:  # Other lanes may not come here for a while.
            for run in runs:
                run.take_state()
        return metrics

    def _wait_for(self, runs: Sequence[PackedRun]) -> None:
        # Not for `run.state`: that would copy rows.
        jax.block_until_ready((self._state, [run._state for run in runs]))

    @functools.cached_property
    def _compiled(self) -> Any | None:
        """The step of all rows; None if a device has too little memory, or cannot do it."""
        try:
            step = self._program.packed_step(self.count)
        # An operation may have no batched form, and XLA may need too much memory. Each trial can
        # still train by itself, or else has this error alone.
        except Exception as error:
            self._can_pack = False
            logging.warning('Trials train one after another: no packed step', exc_info=error)
            return None
        if (limit := self._memory_limit) is None or (needed := memory_bytes(step)) <= limit:
            return step
        self._can_pack = False
        logging.warning(
            'Trials train one after another: %d together need %.1f GB of each device, which has '
            '%.1f GB. Give a smaller --pack',
            *(self.count, needed / 1e9, limit / 1e9),
        )
        return None

    def _apart(self, runs: Sequence[PackedRun], batches: Sequence[Any]) -> list[Metrics]:
        for run in runs:
            run.take_state()
        return [Stepper.step(run, batch) for run, batch in zip(runs, batches, strict=True)]

    def _together(self, runs: Sequence[PackedRun], batches: Sequence[Any]) -> list[Metrics]:
        for run in runs:
            if run.pack is None and (not run.is_apart or self._state is None):
                self._add(run)
        apart: dict[int, Metrics] = {}
        given: dict[int, Any] = {}
        for run, batch in zip(runs, batches, strict=True):
            if run.is_apart:
                apart[run.row] = Stepper.step(run, batch)
            else:
                given[run.row] = batch, run.random_key, run.values
        if not given:
            return [apart[run.row] for run in runs]
        first = next(iter(given.values()))
        rows = [given.get(row, first) for row in range(self.count)]
        step = self._compiled
        assert step is not None
        with jax.transfer_guard('disallow'):
            self._state, metrics = step(self._state, self._frozen, *zip(*rows, strict=True))
        return [apart[run.row] if run.is_apart else metrics[run.row] for run in runs]

    def _add(self, run: PackedRun) -> None:
        frozen = frozen_of(run.state)
        if self._state is not None and frozen and not self._are_equal(frozen, self._frozen):
            run.is_apart = True
            return
        run.is_apart, state = False, without_frozen(run.give_state())
        if self._state is None:
            self._state, self._frozen = self._spread(state), frozen
        else:
            row = self._program.replicated(jnp.int32(run.row))
            self._state = self._replace(self._state, state, row)
        run.pack = self
        self._rows.add(run.row)


class _Choice:
    """Chooses how the runs of a program do their steps."""

    def __init__(
        self, program: Program, mode: Mode, patience: float | None, clock: Callable[[], float]
    ) -> None:
        self._program, self._mode, self._clock = program, mode, clock
        self._patience = PATIENCE.get(jax.default_backend(), 40.0) if patience is None else patience
        self._began = clock()
        self._seconds: dict[bool, list[float]] = {True: [], False: []}

    def wants_company(self, count: int) -> bool:
        """Returns True unless this number of runs is faster alone: always, or for now."""
        if pgle.is_enabled():
            return False
        if self._mode == 'always':
            return True
        is_measured = all(len(seconds) == _TIMED for seconds in self._seconds.values())
        return self._is_faster(count) if is_measured else self._is_worth_a_try()

    def put_off(self) -> None:
        """Delays the try, since a run has no company."""
        self._began = self._clock()

    def is_packed(self, count: int) -> bool:
        """Returns True where this number of runs does its next step together."""
        is_next = self._mode == 'always' or len(self._seconds[False]) == _TIMED
        return count > 1 and is_next and self.wants_company(count)

    def _is_faster(self, count: int) -> bool:
        together, apart = (min(self._seconds[kind][1:]) for kind in (True, False))
        return together < count * apart

    def _is_worth_a_try(self) -> bool:
        spent = self._clock() - self._began
        return 0.0 < self._patience * self._program.compile_seconds <= spent

    @contextlib.contextmanager
    def timed(self, is_packed: bool, count: int, wait: Callable[[], None]) -> Iterator[None]:
        """Context manager of a step of runs, which it measures where the choice is open.

        Args:
            wait: returns when their states are ready.
        """
        seconds = self._seconds[is_packed]
        is_open = self._mode == 'measured' and count > 1 and self._is_worth_a_try()
        if not is_open or len(seconds) >= _TIMED:
            yield
            return
        wait()
        began = self._clock()
        yield
        wait()
        seconds.append((self._clock() - began) / (1 if is_packed else count))
