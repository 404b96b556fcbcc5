"""Stopping criteria of a study: hours, device hours, a target reward."""

from collections.abc import Sequence
from typing import Protocol

from paxtune.study.replicates import leaderboard
from paxtune.study.trial import Trial

_HOUR = 3600.0


class Budgets(Protocol):
    """The part of a `Search` that ends a study early; None where nothing does."""

    max_hours: float | None
    max_device_hours: float | None
    target_reward: float | None
    repeats: int


def hours(trials: Sequence[Trial]) -> float:
    """Sums the run time of trials, without those that ran in other studies."""
    return sum(trial.seconds for trial in trials if not trial.lineage.is_imported) / _HOUR


def device_hours(trials: Sequence[Trial]) -> float:
    """Sums the run time of trials, each times its devices."""
    own = [trial for trial in trials if not trial.lineage.is_imported]
    return sum(trial.seconds * max(trial.record.devices, 1) for trial in own) / _HOUR


def used_up(budgets: Budgets, trials: Sequence[Trial], sign: float) -> str | None:
    """Names the budget that is used up; None if none is.

    Args:
        budgets: of the study.
        trials: all of its trials.
        sign: of its reward: 1.0 where more is better, else -1.0.
    """
    target = budgets.target_reward
    if target is not None:
        for each in leaderboard(trials, budgets.repeats):
            if each.is_complete and each.rewards and sign * each.rewards[0] >= sign * target:
                count = len(each.trials)
                how = f' in the mean of {count} trials' if count > 1 else ''
                return f'trial {each.trial.id} has reached the target reward {target}{how}'
    return hours_used_up(budgets, trials)


def hours_used_up(budgets: Budgets, trials: Sequence[Trial]) -> str | None:
    """Names the budget of hours that is used up; None if none is."""
    if budgets.max_hours is not None and hours(trials) >= budgets.max_hours:
        return f'its {budgets.max_hours:g} hours are used up'
    if budgets.max_device_hours is not None and device_hours(trials) >= budgets.max_device_hours:
        return f'its {budgets.max_device_hours:g} device hours are used up'
    return None
