from collections.abc import Sequence
from typing import Any

from paxtune.study import stopping_criteria
from paxtune.study.reasons import commonest
from paxtune.study.record import Status
from paxtune.study.study import Study
from paxtune.study.trial import Trial

_MOST_REASONS = 5


def budgets(study: Study, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Lists what is used of each budget, and its limit; None without one."""
    search = study.search
    failures = sum(trial.is_failed for trial in trials)
    rows: list[tuple[str, float | None, float | None]] = [
        ('trials', len(trials), study.num_trials),
        ('hours', stopping_criteria.hours(trials), search.budget.hours),
        ('device hours', stopping_criteria.device_hours(trials), search.budget.device_hours),
        ('failures', failures, search.faults.max_failures),
    ]
    if search.budget.target_reward is not None:
        best = study.leaderboard[:1]
        rows.append(('reward', best[0].rewards[0] if best else None, search.budget.target_reward))
    return [{'budget': name, 'used': used, 'limit': limit} for name, used, limit in rows]


def reasons(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Counts the commonest reasons of infeasible trials."""
    found = commonest(
        trial.reason for trial in trials if trial.status is Status.INFEASIBLE and trial.reason
    )
    return [{'count': count, 'reason': reason} for count, reason in found[:_MOST_REASONS]]
