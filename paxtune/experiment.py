"""Experiments that can be tuned."""

from paxtune.algorithms import Algorithm, RandomSearch
from paxtune.policies import EarlyStopping
from paxtune.rewards import Reward
from trainer.component import Component
from trainer.experiment import Experiment


class Search(Component):
    """How the decisions of an experiment are searched.

    Attributes:
        reward: what makes one trial better than another.
        num_trials: trials in the study, all in all. It may grow when a study is resumed.
        algorithm: what proposes the decisions of a trial.
        early_stopping: what ends trials that are not worth going on with.
        seed: what the algorithm draws from.
    """

    reward: Reward
    num_trials: int
    algorithm: Algorithm = RandomSearch()
    early_stopping: EarlyStopping | None = None
    seed: int = 0

    def check(self) -> None:
        if self.num_trials < 1:
            raise ValueError(f'num_trials must be at least 1: {self.num_trials}')


class Tunable(Experiment):
    """An experiment with decisions in it, and how to search them.

    Attributes:
        search: algorithm, reward, early stopping, number of trials.
    """

    search: Search
