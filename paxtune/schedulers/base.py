"""What the study expects of any policy that decides how far its trials are trained."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import pyglove as pg

from paxtune.algorithms.base import SuggestionContext
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import Reward
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.component import Component

Unit: TypeAlias = Literal['steps', 'tokens', 'flops', 'seconds']
"""What budgets are counted in: see `paxtune.schedulers.resources`."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """What a policy may know of a trial.

    Attributes:
        id: the trial's number.
        state: 'waiting' before it begins, 'running', 'paused' where it waits to be promoted, then
            'completed' or 'stopped'.
        measurements: by step.
        spent: what the trial had spent at each of them, in the policy's unit.
        budget: what it spends if it is trained to its end, in that unit; None where nobody knows.
        pauses: the steps at which it was paused, by step; that of now is among them.
        decisions: its decisions.
        forked_from: the trial and the step that its weights came from, where a policy forked it.
        replaces: the trial whose place in the population it took, where a policy forked it.
    """

    id: int
    state: Literal['waiting', 'running', 'paused', 'completed', 'stopped']
    measurements: Sequence[Measurement]
    spent: Sequence[float]
    budget: float | None = None
    pauses: Sequence[int] = ()
    decisions: Decisions = dataclasses.field(default_factory=dict)
    forked_from: tuple[int, int] | None = None
    replaces: int | None = None


@dataclasses.dataclass(frozen=True)
class Stop:
    """Ends a trial early, with its last measurement; the reason is for people."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Pause:
    """Saves a trial and puts it aside, until it is promoted; the reason is for people."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Promote:
    """Has a paused trial go on from where it was paused; the reason is for people."""

    trial: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Fork:
    """Begins a trial with the whole state of another one, optimizer and position in the data too.

    Attributes:
        trial: the paused trial whose state it is.
        step: where that was paused.
        decisions: of the new trial.
        replaces: a paused trial that ends with this: its place in the population is taken.
        reason: for people.
    """

    trial: int
    step: int
    decisions: Decisions
    replaces: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Wait:
    """Begins no trial: what comes next depends on those that run. Without any, the study is done.

    The reason is for people.
    """

    reason: str


class Policy(Component):
    """Decides how far trials are trained: which stop, pause, go on later, or begin from another.

    A policy keeps no state: it is asked with all that is recorded of the study's trials, and the
    same records give the same answer, in any process. So a trial that is resumed after a kill is
    judged as it would have been.

    Attributes:
        unit: what it counts budgets in: training steps, tokens, floating-point operations of
            training, or seconds of training (without compilation and evaluation).
        grace: the share of its budget that a trial has spent before it is judged. Where learning
            rates decay, curves cross late: early ranks say little.
    """

    unit: Unit = 'steps'
    grace: float = 0.0

    def check(self) -> None:
        if not 0.0 <= self.grace < 1.0:
            raise ValueError(
                f'grace must be a share of the budget, from 0 to below 1: {self.grace}'
            )
        if self.grace and self.unit == 'seconds':
            raise ValueError('grace needs a budget that is known beforehand, which seconds are not')

    @property
    def needs_reward(self) -> bool:
        """Whether it works only in a search with exactly one reward."""
        return True

    @property
    def pauses(self) -> bool:
        """Whether it pauses trials, so that they must be able to go on from a checkpoint."""
        return False

    @property
    def forks(self) -> bool:
        """Whether it forks trials, each of which must be one run."""
        return False

    @property
    def needs_budget(self) -> bool:
        """Whether it must know what a trial spends if it is trained to its end."""
        return self.grace > 0.0

    def check_space(self, spec: pg.DNASpec) -> None:
        """Called before the first trial of a study.

        Raises:
            UserError: the policy cannot be used where this is searched.
        """

    def rungs(self, curve: Curve) -> Sequence[float]:
        """The budgets at which it compares a trial with others, in its unit, from the lowest.

        Empty where it has no such rungs: it judges a trial after every measurement.
        """
        return ()

    def verdict(
        self, curve: Curve, others: Sequence[Curve], reward: Reward | None
    ) -> Stop | Pause | None:
        """Judges a trial at its last measurement: see `judge`. None within its grace.

        Raises:
            ValueError: the policy needs a reward, and there is none; or it grants a grace, and
                nobody knows the trial's budget.
        """
        if self.grace:
            if curve.budget is None:
                raise ValueError('grace is a share of a budget that nobody knows')
            if curve.spent[-1] < self.grace * curve.budget:
                return None
        return self.judge(curve, others, reward)

    def judge(
        self, curve: Curve, others: Sequence[Curve], reward: Reward | None
    ) -> Stop | Pause | None:
        """Judges a trial at its last measurement, which is not its end.

        Measurements without what the policy goes by, such as a reward, are passed over.

        Args:
            curve: the trial, running; at least one measurement.
            others: the study's other trials, finished, stopped and running ones. Trials that turned
                out infeasible are not among them.
            reward: the search's only reward, which says which rewards are better; None where it
                has another number of them.

        Returns:
            What becomes of the trial; None if it goes on.

        Raises:
            ValueError: the policy needs a reward, and there is none.
        """
        raise NotImplementedError(type(self).__name__)

    def next(
        self,
        curves: Sequence[Curve],
        reward: Reward | None,
        request: SuggestionContext,
        may_begin: bool,
    ) -> Promote | Fork | Wait | None:
        """What somebody who has nothing to do is to do next.

        Asked again after each answer but None, with what has become of it.

        Args:
            curves: all trials of the study that are not infeasible, by id.
            reward: as for `judge`.
            request: what a new trial's decisions may be made of.
            may_begin: whether the study has room for one more trial.

        Returns:
            None to begin a trial that waits, or one that the algorithm suggests. Where there is
            none, and nothing runs, the study is done, and paused trials end.
        """
        return None


def reward_score(policy: Policy, reward: Reward | None) -> Callable[[float], float]:
    """What turns rewards such that more is better.

    Raises:
        ValueError: there is no reward.
    """
    if reward is None:
        raise ValueError(f'{type(policy).__name__} needs a search with exactly one reward')
    return reward.score
