"""Experiments that can be tuned."""

from typing import Any

from paxtune.config.search import Search
from trainer.experiment import Experiment
from trainer.runtime.directory import is_folder_name
from trainer.symbolic.component import bind
from trainer.symbolic.errors import UserError
from trainer.symbolic.overrides import replaced


class Tunable(Experiment):
    """An experiment with decisions in it, and the configuration of their search.

    Attributes:
        search: objective, budget, algorithm, scheduler.
        sub_experiments: the experiments that a trial trains, one after another: by name, the
            values by path that differ from this experiment. Their metrics are called
            `<metric>:<name>`. Empty for a trial of one experiment.
    """

    search: Search
    sub_experiments: dict[str, dict[str, Any]] = {}

    def check(self) -> None:
        super().check()
        if self.sub_experiments and self.search.metric_aggregation.needs_reward:
            raise ValueError(
                'search.metric_aggregation: the reward is of all sub-experiments and cannot select '
                'the best step of one: name a metric'
            )
        for name in self.sub_experiments:
            if not is_folder_name(name):
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


def as_tunable(experiment: Experiment, search: Search) -> Tunable:
    """A copy of an experiment that can be searched; a `Tunable` keeps its own search.

    Args:
        search: of an experiment without one.

    Raises:
        UserError: a class derived from `Experiment` has fields or a `check` of its own.
    """
    if isinstance(experiment, Tunable):
        return experiment.clone(deep=True)
    kind, own = type(experiment), dict(experiment.clone(deep=True).sym_init_args)
    if own.keys() - set(Experiment.__schema__.keys()) or kind.check is not Experiment.check:
        raise UserError(
            f'{kind.__name__} has fields or a check of its own: derive it from paxtune.Tunable, in '
            'place of Experiment, to search it'
        )
    return Tunable(**own, search=search)
