"""The place of a run: the process, alone or shared with others.

A search of a function needs neither JAX nor a program, so they are imported when used.
"""

import time
from typing import TYPE_CHECKING

from trainer.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    import jax

    from trainer.program.packing.stepper import Stepper
    from trainer.program.program import Program
    from trainer.program.step_functions import Values
    from trainer.state import TrainState


class Alone:
    """A place for one run after another in this process, which no others share."""

    def stepper(
        self, program: 'Program', state: 'TrainState', random_key: 'jax.Array', values: 'Values'
    ) -> 'Stepper':
        """Begins the steps of a run."""
        from trainer.program.packing.stepper import Stepper

        return Stepper(program, state, random_key, values)

    def wait(self, seconds: float) -> None:
        """Waits for other processes."""
        time.sleep(seconds)

    def give_way(self) -> None:
        """Lets other lanes continue, between two runs of this lane."""

    def clock(self) -> WallClock | None:
        """Makes a clock of the time of these runs; None for the clock of the thread."""
        return None
