"""Stopping criteria of a study: hours, device hours, a target reward."""

from collections.abc import Callable, Sequence

from paxtune.config.budget import Budget
from paxtune.study.record import Status
from paxtune.study.replicates import is_plain, top
from paxtune.study.transitions import is_outside
from paxtune.study.trial import Trial
from paxtune.study.trial_table import Trials, column

_HOUR = 3600.0
_SECOND = 1 / _HOUR


def hours(trials: Sequence[Trial]) -> float:
    """Sums the run time of trials, without imported ones."""
    return sum(column(trials, _seconds)) / _HOUR


def device_hours(trials: Sequence[Trial]) -> float:
    """Sums the run time of trials, each times its devices."""
    return sum(column(trials, _device_seconds)) / _HOUR


def _seconds(trial: Trial) -> float:
    return 0.0 if trial.lineage.is_imported else trial.seconds


def _device_seconds(trial: Trial) -> float:
    return _seconds(trial) * max(trial.record.run_time.devices, 1)


def used_up(budget: Budget, trials: Sequence[Trial], sign: float, replicates: int) -> str | None:
    """Names the limit of the budget that is reached; None without one.

    Args:
        sign: of the reward: 1.0 if more is better, else -1.0.
        replicates: the number of trials of each configuration.
    """
    target = budget.target_reward
    if target is not None:
        # The first one, alone, where the order is that of the rewards.
        count = 1 if is_plain(trials, replicates) else len(trials)
        for each in top(trials, replicates, count):
            if each.is_complete and each.rewards and sign * each.rewards[0] >= sign * target:
                count = len(each.trials)
                how = f' in the mean of {count} trials' if count > 1 else ''
                return f'trial {each.trial.id} has reached the target reward {target}{how}'
    return hours_used_up(budget, trials)


def hours_used_up(budget: Budget, trials: Sequence[Trial]) -> str | None:
    """Names the limit of hours that is reached; None without one."""
    if budget.hours is not None and hours(trials) >= budget.hours:
        return f'its {_rendered(budget.hours)} are used up'
    if budget.device_hours is not None and device_hours(trials) >= budget.device_hours:
        return f'its {budget.device_hours:g} device hours are used up'
    return None


def _rendered(hours: float) -> str:
    is_short = _SECOND <= hours < 0.1
    return f'{hours * _HOUR:g} seconds' if is_short else f'{hours:g} hours'


def seconds_left(
    budget: Budget,
    trials: Trials,
    number: int,
    seconds_before: float,
    devices: int,
    is_alive: Callable[[str], bool],
) -> float | None:
    """Computes the seconds that an attempt may take; None without a limit.

    The trials that run at the same time have equal shares, as their seconds are not known yet.

    Args:
        budget: of the study.
        trials: all of the study.
        number: of the trial of the attempt.
        seconds_before: the run time of earlier attempts at this trial.
        devices: of this trial; 0 if it has none of its own.
        is_alive: whether the worker of a name may be alive.
    """
    left = []
    own = [each for each in trials.unended if each.id == number]
    if budget.hours is not None:
        left.append((budget.hours - hours(trials)) * _HOUR + sum(map(_seconds, own)))
    if budget.device_hours is not None and devices:
        rest = (budget.device_hours - device_hours(trials)) * _HOUR
        left.append((rest + sum(map(_device_seconds, own))) / devices)
    others = [each.record for each in trials.unended if each.id != number]
    holders = [each.holder for each in others if each.status is Status.ACTIVE]
    running = sum(is_alive(each) and not is_outside(each) for each in holders if each)
    return (min(left) - seconds_before) / (1 + running) if left else None
