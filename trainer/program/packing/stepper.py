"""The train steps of a run."""

from collections.abc import Mapping

import jax

from trainer.metrics import Metrics
from trainer.program.program import Program
from trainer.program.step_functions import Values
from trainer.runtime import pgle
from trainer.state import TrainState


class Stepper:
    """The state of a run, which its train steps change.

    Attributes:
        program: the compiled program of the run.
        random_key: of all random numbers of the run.
        values: numbers of the run.
    """

    def __init__(
        self, program: Program, state: TrainState, random_key: jax.Array, values: Values
    ) -> None:
        self.program, self.random_key, self.values = program, random_key, values
        self._state = state

    @property
    def can_do_several(self) -> bool:
        """True if it can do several steps in one execution."""
        return not pgle.is_enabled()  # JAX profiles, and compiles again, single steps.

    @property
    def state(self) -> TrainState:
        """The state after the last step. The next step may donate its buffers."""
        return self._state

    def step(self, batch: Mapping[str, jax.Array], count: int = 1) -> Metrics:
        """Does a step, or several in one execution, without waiting for the devices.

        Args:
            batch: the batches of several steps have a first axis of the steps, as the result has.
            count: number of steps.
        """
        train_steps = self.program.train_steps(count)
        with jax.transfer_guard('disallow'):  # Forbids implicit device-to-host transfers.
            self._state, metrics = train_steps(self._state, batch, self.random_key, self.values)
        return metrics
