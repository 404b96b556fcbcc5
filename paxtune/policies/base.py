"""What the study expects of any policy that stops trials early."""

from collections.abc import Sequence

from paxtune.measurement import Measurement
from paxtune.rewards import Reward
from trainer.component import Component


class EarlyStopping(Component):
    """Decides after each measurement whether a trial goes on.

    A policy keeps no state: the same measurements give the same answer, in any process. So a
    trial that is resumed after a kill is judged as it would have been.
    """

    def should_stop(
        self,
        measurements: Sequence[Measurement],
        others: Sequence[Sequence[Measurement]],
        reward: Reward,
    ) -> str | None:
        """Judges a trial at its last measurement.

        Args:
            measurements: the trial's own, by step; at least one.
            others: those of the study's other trials, finished, stopped and running ones, in the
                order of trials. Trials that turned out infeasible are not among them.
            reward: says which rewards are better.

        Returns:
            Why the trial should stop, for people; None if it goes on.
        """
        raise NotImplementedError(type(self).__name__)
