"""What a study may use up, and what it has used."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from paxtune.study import replicates as repeats

if TYPE_CHECKING:
    from paxtune.study.trial import Trial

_HOUR = 3600.0


class Budgets(Protocol):
    """The part of a `Search` that ends a study early; None where nothing does."""

    max_hours: float | None
    max_device_hours: float | None
    target_reward: float | None
    repeats: int


def hours(trials: Sequence['Trial']) -> float:
    """How long trials have run, those that ran in other studies left out."""
    return sum(trial.seconds for trial in trials if not trial.is_imported) / _HOUR


def device_hours(trials: Sequence['Trial']) -> float:
    """The same, each trial times its devices."""
    own = [trial for trial in trials if not trial.is_imported]
    return sum(trial.seconds * max(trial.devices, 1) for trial in own) / _HOUR


def used_up(budgets: Budgets, trials: Sequence['Trial'], sign: float) -> str | None:
    """Which budget is used up; None if none is.

    Args:
        budgets: of the study.
        trials: all of its trials.
        sign: of its reward: 1.0 where more is better, else -1.0.
    """
    target = budgets.target_reward
    if target is not None:
        for each in repeats.standings(trials, budgets.repeats):
            if each.is_whole and each.rewards and sign * each.rewards[0] >= sign * target:
                count = len(each.trials)
                how = f' in the mean of {count} trials' if count > 1 else ''
                return f'trial {each.trial.id} has reached the target reward {target}{how}'
    return hours_used_up(budgets, trials)


def hours_used_up(budgets: Budgets, trials: Sequence['Trial']) -> str | None:
    """Which budget of hours is used up; None if none is."""
    if budgets.max_hours is not None and hours(trials) >= budgets.max_hours:
        return f'its {budgets.max_hours:g} hours are used up'
    if budgets.max_device_hours is not None and device_hours(trials) >= budgets.max_device_hours:
        return f'its {budgets.max_device_hours:g} device hours are used up'
    return None
