"""Experiments that can be tuned."""

from typing import Any

from paxtune.config.search import Search
from trainer.experiment import Experiment
from trainer.symbolic.component import bind
from trainer.symbolic.overrides import replaced


class Tunable(Experiment):
    """An experiment with decisions in it, and the configuration of their search.

    Attributes:
        search: objective, budget, algorithm, scheduler.
        shared: named values, decisions included, that other values are derived from
            (`derived('shared.width')`).
        sub_experiments: the experiments that a trial trains, one after another: by name, the
            values by path that differ from this experiment. Their metrics are called
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
                    f'sub_experiments: {name!r} is not a valid name: use letters, digits, _ and -'
                )

    def parts(self) -> dict[str, 'Tunable']:
        """The experiments that a trial trains, in order, by the name of the sub-experiment.

        Without sub-experiments it is one, called ''.

        Raises:
            UserError: a sub-experiment has an unknown path, or a value of a wrong type.
        """
        if not self.sub_experiments:
            return {'': self}
        alone = bind(self, {'sub_experiments': {}})
        return {
            name: replaced(alone, dict(changes), f'sub_experiments.{name}')
            for name, changes in self.sub_experiments.items()
        }
