"""The train steps of a run."""

from collections.abc import Mapping
from typing import ClassVar

import jax

from trainer.metrics import Metrics
from trainer.program.program import Program, Values
from trainer.state import TrainState


class Stepper:
    """The state of a run, which its train steps change.

    Attributes:
        can_do_several: whether it can do several steps in one execution.
        program: what the run is compiled to.
        random_key: of all random numbers of the run.
        values: numbers of the run.
    """

    can_do_several: ClassVar[bool] = True

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

    def steps(self, batches: Mapping[str, jax.Array], count: int) -> Metrics:
        """Does several steps in one execution, without waiting for the devices.

        Args:
            batches: with a first axis of the steps, as the result has it.
            count: number of steps.
        """
        train_steps = self.program.train_steps(count)
        with jax.transfer_guard('disallow'):
            self._state, metrics = train_steps(self._state, batches, self.random_key, self.values)
        return metrics
