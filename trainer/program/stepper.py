"""The train steps of a run, and how a run shares its process with others."""

import time
from collections.abc import Mapping

import jax

from trainer.metrics import Metrics
from trainer.program.program import Program, Values
from trainer.runtime.wall_clock import WallClock
from trainer.state import TrainState


class Stepper:
    """The state of a run, which its train steps change.

    Attributes:
        program: what the run is compiled to.
        random_key: of all random numbers of the run.
        values: numbers of the run.
    """

    def __init__(
        self, program: Program, state: TrainState, random_key: jax.Array, values: Values
    ) -> None:
        self.program, self.random_key, self.values = program, random_key, values
        self._state = state

    @property
    def state(self) -> TrainState:
        """The state after the last step. The next step may donate its buffers."""
        return self._state

    def step(self, batch: Mapping[str, jax.Array]) -> Metrics:
        """Does a step, without waiting for the devices."""
        train_step = self.program.train_step
        with jax.transfer_guard('disallow'):  # Forbids implicit device-to-host transfers.
            self._state, metrics = train_step(self._state, batch, self.random_key, self.values)
        return metrics


class Alone:
    """A place for one run after another in this process, which no others share."""

    def stepper(
        self, program: Program, state: TrainState, random_key: jax.Array, values: Values
    ) -> Stepper:
        """Begins the steps of a run."""
        return Stepper(program, state, random_key, values)

    def wait(self, seconds: float) -> None:
        """Waits for what other processes do."""
        time.sleep(seconds)

    def clock(self) -> WallClock | None:
        """Makes a clock of the time that these runs have; None for that of the thread."""
        return None
