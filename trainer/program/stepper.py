"""The train steps of a run."""

from collections.abc import Mapping

import jax

from trainer.metrics import Metrics
from trainer.program.program import Program, Values
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
