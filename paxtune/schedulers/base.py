"""The interface of schedulers, which decide how far the trials of a study are trained."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, TypeAlias, TypeVar

import pyglove as pg

from paxtune.algorithms.base import SuggestionContext
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import Reward
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.component import Component, require_fraction

Unit: TypeAlias = Literal['steps', 'tokens', 'flops', 'seconds']
"""The unit of a resource: see `paxtune.schedulers.resources`."""

State: TypeAlias = Literal['waiting', 'running', 'paused', 'completed', 'stopped']


@dataclasses.dataclass(frozen=True)
class TrialCurve:
    """The learning curve of a trial, and its state: all that a scheduler knows of the trial.

    Attributes:
        id: the trial's number.
        state: 'waiting' before it begins, 'running', 'paused' until it is promoted, then
            'completed' or 'stopped'.
        measurements: by step.
        resources: the resource used up to each measurement, in the scheduler's unit.
        max_resource: the resource that training to the end takes, in that unit; None if unknown.
        pauses: the steps at which the trial was paused, by step; the current one included.
        decisions: the trial's decisions.
        forked_from: the trial and the step that the weights came from, in a forked trial.
        replaces: the trial whose place in the population it took, in a forked trial.
        point: the decisions as numbers from 0 to 1: see `paxtune.algorithms.encoding.points`. Empty
            where the space is unknown.
    """

    id: int
    state: State
    measurements: Sequence[Measurement]
    resources: Sequence[float]
    max_resource: float | None = None
    pauses: Sequence[int] = ()
    decisions: Decisions = dataclasses.field(default_factory=dict)
    forked_from: tuple[int, int] | None = None
    replaces: int | None = None
    point: Sequence[float] = ()


Curves: TypeAlias = Sequence[TrialCurve]
_Value = TypeVar('_Value')


def column(curves: Curves, name: str, value_of: Callable[[TrialCurve], _Value]) -> Sequence[_Value]:
    """Returns a value of each curve, in their order.

    The curves of a study keep their columns. After a trial has changed, only its value is computed.

    Args:
        name: of the column; another one for any other function.
        value_of: a function of the curve, and of the fields of the scheduler.
    """
    kept = getattr(curves, 'column', None)
    found: Sequence[_Value] = [*map(value_of, curves)] if kept is None else kept(name, value_of)
    return found


Score: TypeAlias = Callable[[float], float]
"""Maps rewards, or values of a metric, to scores, of which more is better."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """Ends a trial early, with its last measurement; the reason is for people."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Pause:
    """Saves a trial and puts it aside until it is promoted; the reason is for people."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Promote:
    """Resumes a paused trial where it was paused; the reason is for people."""

    trial: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Fork:
    """Begins a trial from the whole state of another one: optimizer and data position included.

    Attributes:
        trial: the paused trial that is forked.
        step: the step at which it was paused.
        decisions: of the new trial.
        replaces: a paused trial that ends with this, because the new one takes its place.
        reason: for people.
    """

    trial: int
    step: int
    decisions: Decisions
    replaces: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Wait:
    """Begins no trial until a running one changes. With none running, the study is done.

    The reason is for people.
    """

    reason: str


class Scheduler(Component):
    """Decides how far trials are trained: which ones stop, pause, resume, or fork another one.

    A scheduler keeps no state. Each call gets all that is recorded of the study's trials, and the
    same records give the same answer in any process. So a trial that resumes after a kill gets the
    decisions that it would have got without it.

    Attributes:
        unit: the unit of resources: training steps, tokens, floating-point operations of training,
            or seconds of training (without compilation and evaluation).
        grace_period: a trial goes on until it has used this share of its `max_resource`. Where
            learning rates decay, curves cross late, and early ranks say little.
    """

    pauses: ClassVar[bool] = False
    """True if it pauses trials, which then resume from checkpoints."""

    forks: ClassVar[bool] = False
    """True if it forks trials, each of which must be one run."""

    unit: Unit = 'steps'
    grace_period: float = 0.0

    def check(self) -> None:
        require_fraction(self, 'grace_period')
        if self.grace_period and self.unit == 'seconds':
            raise ValueError(
                'grace_period needs a resource that is known beforehand, which seconds are not'
            )

    @property
    def needs_reward(self) -> bool:
        """True if it works only in a search with exactly one reward."""
        return True

    @property
    def needs_max_resource(self) -> bool:
        """True if it needs `TrialCurve.max_resource`."""
        return self.grace_period > 0.0

    def check_space(self, spec: pg.DNASpec) -> None:
        """Raises UserError before the first trial if the scheduler cannot use this space."""

    def rung_levels(self, curve: TrialCurve) -> Sequence[float]:
        """The resources at which it compares a trial with others, from the lowest.

        Empty if it has no rungs, and decides after every measurement.
        """
        return ()

    def onsets(self, max_resource: float) -> dict[str, float]:
        """The resources from which fields have an effect; all of training is `max_resource`."""
        return {'grace_period': self.grace_period * max_resource}

    def decide(
        self, curve: TrialCurve, others: Curves, reward: Reward | None
    ) -> Stop | Pause | None:
        """Decides at the last measurement of a running trial, which is not its end.

        Args:
            curve: the trial, with at least one measurement.
            others: the study's other trials, in any state but infeasible.
            reward: the search's only reward, which says which rewards are better; None if it has
                another number of them.

        Returns:
            The decision; None if the trial goes on, as it does in the grace period.

        Raises:
            ValueError: a reward is needed and missing; or there is a grace period, and the trial's
                `max_resource` is unknown.
        """
        if self.grace_period:
            if curve.max_resource is None:
                raise ValueError('grace_period is a share of a resource that is not known')
            if curve.resources[-1] < self.grace_period * curve.max_resource:
                return None
        return self._decide(curve, others, reward)

    def _decide(
        self, curve: TrialCurve, others: Curves, reward: Reward | None
    ) -> Stop | Pause | None:
        """Decides as `decide`, after the grace period.

        Measurements that lack the value it compares, such as the reward, are skipped.
        """
        raise NotImplementedError(type(self).__name__)

    def _score(self, reward: Reward | None) -> Score:
        """The function that maps compared values to scores; ValueError if there is no reward."""
        if reward is None:
            raise ValueError(f'{type(self).__name__} needs a search with exactly one reward')
        return reward.score

    def next_action(
        self, curves: Curves, reward: Reward | None, context: SuggestionContext, may_begin: bool
    ) -> Promote | Fork | Wait | None:
        """The next action for an idle worker. After each one but None it is asked again.

        Args:
            curves: all trials of the study that are not infeasible, by id.
            reward: as for `decide`.
            context: the suggestion context, for the decisions of a forked trial.
            may_begin: True if the study has room for one more trial.

        Returns:
            None to begin a waiting trial, or else one that the algorithm suggests. If there is
            neither, and no trial runs, then the study is done and paused trials end.
        """
        return None

    def findings(self, curves: Curves, reward: Reward | None) -> list[str]:
        """Describes its findings about a study's trials, for people; empty without any.

        Args:
            curves: all trials of the study that are not infeasible.
            reward: as for `decide`.
        """
        return []
