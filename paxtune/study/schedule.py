"""The next action of a worker: a pure function of trial records and of the scheduler's decision."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from paxtune.schedulers import Fork, Promote, Wait
from paxtune.study.record import Status, TrialRecord
from trainer.command import counted

Decision: TypeAlias = Promote | Fork | Wait | None
"""A scheduler's decision; None lets a trial begin."""


@dataclasses.dataclass(frozen=True)
class Done:
    """Ends the study. The reason is for people."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Claim:
    """Claims a trial that waits to run, or that lost its worker."""


@dataclasses.dataclass(frozen=True)
class Suggest:
    """Asks the algorithm for a new trial."""


Action: TypeAlias = Done | Promote | Fork | Claim | Wait | Suggest


@dataclasses.dataclass(frozen=True)
class View:
    """The state of a study that determines the next action.

    Attributes:
        count: the number of trials that the study has.
        unended: the unended trials, by id.
        num_trials: the number of trials that the study is to have.
        is_exhausted: whether the space has no untried experiment left.
        budget_used: the budget that is used up, for people; None if none is.
        decide: computes the scheduler's decision: see `decision`.
        has_holders: whether a service gives out trials: it knows best which wait.
        is_alive: whether the worker of a name may be alive.
        may_claim: whether a claim may succeed.
    """

    count: int
    unended: Sequence[TrialRecord]
    num_trials: int
    is_exhausted: bool
    budget_used: str | None
    decide: Callable[[], Decision]
    has_holders: bool = False
    is_alive: Callable[[str], bool] = bool
    may_claim: bool = True

    @functools.cached_property
    def decision(self) -> Decision:
        """The scheduler's decision, computed when it is needed, and once."""
        return self.decide()

    @property
    def has_room(self) -> bool:
        """Returns True if the study may get one more trial."""
        return self.count < self.num_trials and not self.is_exhausted

    @property
    def has_ownerless(self) -> bool:
        """Returns True if an active trial has no worker. A worker claims it first."""
        active = (each for each in self.unended if each.status is Status.ACTIVE)
        return any(not self.is_alive(each.holder) for each in active)


def next_action(view: View) -> Action:
    """Decides the next action of a worker without a trial."""
    if (reason := done_reason(view)) is not None:
        return Done(reason)
    has_ownerless = view.has_ownerless
    decision = None if has_ownerless and view.may_claim else view.decision
    if isinstance(decision, Promote | Fork) and not has_ownerless:
        return decision
    is_any_requested = any(each.status is Status.REQUESTED for each in view.unended)
    if view.may_claim and (view.has_holders or has_ownerless or is_any_requested):
        return Claim()
    if isinstance(decision, Wait):
        return decision
    return Suggest() if view.has_room else Wait('the study has all of its trials')


def is_exhausted(
    count: int, num_tried: Callable[[], int], size: int | None, exhausted_at: int | None
) -> bool:
    """Returns True if trials have tried every point of a space.

    Args:
        count: the number of trials.
        num_tried: counts their different experiments.
        size: the number of points; None for an infinite space.
        exhausted_at: the number of trials at which the algorithm found nothing more, if it has.
            That holds until a trial is deleted.
    """
    if exhausted_at is not None and exhausted_at <= count:
        return True
    return size is not None and count >= size and num_tried() >= size


def done_reason(view: View) -> str | None:
    """Says why the study needs no more trials; None while it does."""
    if view.budget_used is not None:
        return view.budget_used
    reason = None
    if view.count >= view.num_trials:
        reason = (
            'it has its only trial' if view.count == 1 else f'it has all of its {view.count} trials'
        )
    elif view.is_exhausted:
        number = counted(view.count, 'different experiment')
        reason = f'there are no more than {number} in its space'
    if not all(each.status is Status.PAUSED for each in view.unended):
        return None
    decision = view.decision
    if reason is None and isinstance(decision, Wait):
        reason = decision.reason
    return None if isinstance(decision, Promote | Fork) else reason
