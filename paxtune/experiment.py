"""Experiments that can be tuned."""

from typing import Any

from paxtune.config.search import Search
from trainer.experiment import Experiment
from trainer.symbolic.component import bind
from trainer.symbolic.overrides import replaced


class Tunable(Experiment):
    """An experiment with decisions in it, and how to search them.

    Attributes:
        search: algorithm, reward, early stopping, number of trials.
        shared: values by name that others are derived from (`derived('shared.width')`), decisions
            among them.
        sub_experiments: what a trial trains, one after another: by name, the values, path to
            value, in which each differs from this experiment. Their metrics are called
            `<metric>:<name>`. Empty for a trial of one experiment.
    """

    search: Search
    shared: dict[str, Any] = {}
    sub_experiments: dict[str, dict[str, Any]] = {}

    def check(self) -> None:
        super().check()
        if self.sub_experiments and self.search.metric_aggregation.needs_reward:
            raise ValueError(
                'search.metric_aggregation: the reward is of all sub-experiments and cannot select '
                'the best step of one: name a metric'
            )
        for name in self.sub_experiments:
            if not name.replace('_', '').replace('-', '').isalnum():
                raise ValueError(
                    f'sub_experiments: {name!r} is no name for one: use letters, digits, _ and -'
                )

    def parts(self) -> dict[str, 'Tunable']:
        """The experiments that a trial trains, in order, by the name of the sub-experiment.

        The one of a trial without sub-experiments is called ''.

        Raises:
            UserError: a sub-experiment names a path that is not there, or a value that does not
                fit.
        """
        if not self.sub_experiments:
            return {'': self}
        alone = bind(self, {'sub_experiments': {}})
        return {
            name: replaced(alone, dict(changes), f'sub_experiments.{name}')
            for name, changes in self.sub_experiments.items()
        }
