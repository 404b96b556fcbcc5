"""The configuration of a search."""

from typing import Any, Literal

from paxtune.algorithms import Algorithm, Default
from paxtune.config.budget import Budget
from paxtune.config.faults import Faults
from paxtune.config.retention import Retention
from paxtune.objectives.aggregation import LastStep, MetricAggregation
from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric, as_metric
from paxtune.objectives.rewards import Objectives, Reward, search_rewards
from paxtune.schedulers import Scheduler
from paxtune.search_space.constraints import Constraint
from trainer.symbolic.component import Component, require_positive


class Search(Component):
    """Configures the search over the decisions of an experiment.

    Attributes:
        objective: the reward that trials are compared by; `Objectives` for several goals at once;
            None if trials are only measured, as in a sweep.
        budget: the limits of the study: trials, hours, or a reward that is good enough.
        algorithm: proposes the decisions of trials; by default the space determines it.
        scheduler: stops, pauses and forks trials; None to train all of them to their ends. By
            default experiments and the number of trials determine it: see `paxtune.Adaptive`.
        seed: the random seed of the algorithm.
        metric_aggregation: aggregates a trial's measurements into its final metrics.
        constraints: conditions on the experiments that are suggested.
        limits: bounds on metrics. A trial beyond one is infeasible: before its first step if the
            metric is a cost that is known by then, such as `num_params`.
        initial_trials: decisions of the first trials, by path. Missing ones are drawn at random.
        prior: decisions, by path, that are expected to be good: values, or intervals of numbers,
            such as [1e-4, 1e-3]. Algorithms that support it search around them first. Other
            decisions have the values of the experiment, or usual ones; None for no such value.
        replicates: the number of trials of each decision, each with its own training seed, for
            noisy rewards. All of them are trials; decisions are compared by their means.
        warm_start: 'parent' starts a trial from the weights of the trial that the algorithm
            derived it from. Layers of another size are adapted.
        child_overrides: changes of a trial that begins with the weights of its parent, by path.
            {'train.num_train_steps': 40} trains it for fewer steps.
        faults: the tolerance for crashes and errors.
        retention: selects the checkpoints to keep.
    """

    objective: Reward | Objectives | None
    budget: Budget = Budget()
    algorithm: Algorithm = Default()
    scheduler: Scheduler | Literal['default'] | None = 'default'
    seed: int = 0
    metric_aggregation: MetricAggregation = LastStep()
    constraints: list[Constraint] = []
    limits: list[Limit] = []
    initial_trials: list[dict[str, Any]] = []
    prior: dict[str, Any] | None = {}
    replicates: int = 1
    warm_start: Literal['parent'] | None = None
    child_overrides: dict[str, Any] = {}
    faults: Faults = Faults()
    retention: Retention = Retention()

    def check(self) -> None:
        require_positive(self, 'replicates')
        if self.child_overrides and self.warm_start is None:
            raise ValueError("child_overrides needs warm_start='parent'")
        scheduler = None if self.scheduler == 'default' else self.scheduler
        if self.replicates > 1 and scheduler is not None and scheduler.pauses:
            raise ValueError(
                f'replicates ({self.replicates}) compare trials that were trained to their ends: '
                f'{type(scheduler).__name__} pauses trials'
            )
        if len(self.rewards) != 1:
            parts = {'scheduler': scheduler, 'metric_aggregation': self.metric_aggregation}
            needing = [name for name, part in parts.items() if part and part.needs_reward]
            needing += ['budget.target_reward'] if self.budget.target_reward is not None else []
            if needing:
                raise ValueError(f'{needing[0]} needs one reward; there are {len(self.rewards)}')

    @property
    def rewards(self) -> list[Reward]:
        """The rewards: one; several with `Objectives`; none if trials are only measured."""
        return search_rewards(self.objective)

    @property
    def metrics(self) -> dict[str, list[Metric]]:
        """The metrics that its parts refer to, by the path of the part."""
        used = {'objective': [metric for reward in self.rewards for metric in reward.metrics]}
        for name in ('scheduler', 'metric_aggregation'):
            metric = getattr(self.sym_getattr(name), 'metric', None)
            used[name] = [] if metric is None else [as_metric(metric)]
        return used | {f'limits[{i}]': [each.selector] for i, each in enumerate(self.limits)}
