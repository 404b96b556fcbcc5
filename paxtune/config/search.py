"""How the decisions of an experiment are searched."""

from typing import Any, Literal

from paxtune.algorithms import Algorithm, Default
from paxtune.config.error_patterns import ErrorPattern
from paxtune.objectives.aggregation import LastStep, MetricAggregation
from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric, as_metric
from paxtune.objectives.rewards import Objectives, Reward, search_rewards
from paxtune.schedulers import Scheduler
from paxtune.search_space.constraints import Constraint
from trainer.symbolic.component import Component


class Search(Component):
    """How the decisions of an experiment are searched.

    Attributes:
        reward: what makes one trial better than another; `Objectives` for several goals at once;
            None where trials are only measured, as in a sweep.
        num_trials: trials in the study, all in all; None for all that a finite space has.
        algorithm: what proposes the decisions of a trial; chosen by the space, by default.
        scheduler: what ends trials that are not worth going on with.
        seed: what the algorithm draws from.
        metric_aggregation: how a trial's measurements become its final metrics.
        constraints: what an experiment must satisfy to be suggested.
        limits: bounds on metrics. A trial beyond one is infeasible: before its first step where
            the metric is a cost, such as `num_params`, that is known by then.
        seeds: the decisions of the first trials, by path. What one leaves out is drawn at random.
        prior: decisions, by path, that are believed to be good ones: an algorithm that can make use
            of that looks around them first. Decisions that are left out may be anything.
        warm_start: 'parent' starts a trial from the weights of the trial that the algorithm
            derived it from.
        errors_to_skip: errors that make a trial infeasible; None for all. Others stop the study.
        errors_to_stop_study: errors that stop the study; these come first.
        max_failures: stop the study when more trials than this have failed with an error.
        max_consecutive_failures: stop it when so many trials that ended one after another have.
        max_attempts: how often a trial is tried whose worker crashes, stands still, or runs out of
            memory or disk, each time from its last checkpoint. Workers that are lost for other
            reasons do not count.
        trial_timeout: a worker that makes no step for so many seconds stands still. To compile and
            to evaluate takes time, too.
        max_hours: stop when all trials together have run for so long.
        max_device_hours: the same, times the devices of each trial.
        target_reward: stop when a trial has a reward as good as this.
        keep_checkpoints: the checkpoints of so many trials, the best ones, stay when they have
            ended; None for all. Those of the others are removed as the study runs.
        max_disk_gb: what trials may hold on disk, in 10⁹ bytes. Beyond it the checkpoints of
            trials that have ended are removed, those of the worst first.
        repeats: how often each decision is tried, each time with another training seed: for rewards
            that are noisy. All of these are trials; decisions are compared by their means.
    """

    reward: Reward | Objectives | None
    num_trials: int | None = None
    algorithm: Algorithm = Default()
    scheduler: Scheduler | None = None
    seed: int = 0
    metric_aggregation: MetricAggregation = LastStep()
    constraints: list[Constraint] = []
    limits: list[Limit] = []
    seeds: list[dict[str, Any]] = []
    prior: dict[str, Any] = {}
    warm_start: Literal['parent'] | None = None
    errors_to_skip: list[ErrorPattern] | None = None
    errors_to_stop_study: list[ErrorPattern] = []
    max_failures: int | None = None
    max_consecutive_failures: int | None = None
    max_attempts: int = 3
    trial_timeout: float | None = None
    max_hours: float | None = None
    max_device_hours: float | None = None
    target_reward: float | None = None
    keep_checkpoints: int | None = 10
    max_disk_gb: float | None = None
    repeats: int = 1

    def check(self) -> None:
        counts = (
            ('num_trials', 1),
            ('max_failures', 0),
            ('max_consecutive_failures', 1),
            ('max_attempts', 1),
            ('keep_checkpoints', 0),
            ('repeats', 1),
        )
        for name, least in counts:
            value = self.sym_getattr(name)
            if value is not None and value < least:
                raise ValueError(f'{name} must be at least {least}: {value}')
        for name in ('max_hours', 'max_device_hours', 'trial_timeout', 'max_disk_gb'):
            value = self.sym_getattr(name)
            if value is not None and not value > 0:
                raise ValueError(f'{name} must be above 0: {value}')
        if self.repeats > 1 and self.scheduler is not None and self.scheduler.pauses:
            raise ValueError(
                f'repeats ({self.repeats}) compare trials that were trained to their ends: '
                f'{type(self.scheduler).__name__} pauses trials'
            )
        if len(self.rewards) != 1:
            needing = [
                name
                for name in ('scheduler', 'metric_aggregation')
                if (part := self.sym_getattr(name)) is not None and part.needs_reward
            ]
            needing += ['target_reward'] if self.target_reward is not None else []
            if needing:
                raise ValueError(f'{needing[0]} needs one reward; there are {len(self.rewards)}')

    @property
    def rewards(self) -> list[Reward]:
        """The rewards: one; several with `Objectives`; none where trials are only measured."""
        return search_rewards(self.reward)

    @property
    def metrics(self) -> dict[str, list[Metric]]:
        """The metrics that it asks for, by the path of what asks."""
        asked = {'reward': [metric for reward in self.rewards for metric in reward.metrics]}
        for name in ('scheduler', 'metric_aggregation'):
            metric = getattr(self.sym_getattr(name), 'metric', None)
            asked[name] = [] if metric is None else [as_metric(metric)]
        return asked | {f'limits[{i}]': [each.selector] for i, each in enumerate(self.limits)}
