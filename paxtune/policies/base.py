"""What the study expects of any policy that stops trials early."""

from collections.abc import Callable, Sequence

from paxtune.measurement import Measurement
from paxtune.rewards import Reward
from trainer.component import Component


class EarlyStopping(Component):
    """Decides after each measurement whether a trial goes on.

    A policy keeps no state: the same measurements give the same answer, in any process. So a
    trial that is resumed after a kill is judged as it would have been.
    """

    @property
    def needs_reward(self) -> bool:
        """Whether it works only in a search with exactly one reward."""
        return True

    def should_stop(
        self,
        measurements: Sequence[Measurement],
        others: Sequence[Sequence[Measurement]],
        reward: Reward | None,
    ) -> str | None:
        """Judges a trial at its last measurement.

        Measurements without what the policy goes by, such as a reward, are passed over.

        Args:
            measurements: the trial's own, by step; at least one.
            others: those of the study's other trials, finished, stopped and running ones, in the
                order of trials. Trials that turned out infeasible are not among them.
            reward: the search's only reward, which says which rewards are better; None where it
                has another number of them.

        Returns:
            Why the trial should stop, for people; None if it goes on.

        Raises:
            ValueError: the policy needs a reward, and there is none.
        """
        raise NotImplementedError(type(self).__name__)


def reward_score(policy: EarlyStopping, reward: Reward | None) -> Callable[[float], float]:
    """What turns rewards such that more is better.

    Raises:
        ValueError: there is no reward.
    """
    if reward is None:
        raise ValueError(f'{type(policy).__name__} needs a search with exactly one reward')
    return reward.score
