from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paxtune.schedulers import resources
from paxtune.simulate import files
from paxtune.simulate.table import UNITS
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial


def curves(study: 'Study') -> str:
    """Writes the curves of a study's ended trials, in the format of `files.read`.

    Raises:
        UserError: the study does not have one reward, or no trial has ended.
    """
    if len(study.rewards) != 1:
        raise UserError(
            f'a table of curves is of one reward: the study has {len(study.rewards)} of them'
        )
    reward = study.rewards[0]
    # The other study has the curves of imported trials.
    ended = [trial for trial in study.trials if trial.is_terminal and not trial.lineage.is_imported]
    rows = [_row(trial) for trial in ended if trial.measurements or trial.status == 'infeasible']
    if not rows:
        raise UserError(f'{study.directory or "the study"}: no trial has ended that ran there')
    return files.write(rows, reward.goal, reward.label)


def _row(trial: 'Trial') -> Mapping[str, Any]:
    measurements = trial.measurements
    row = {
        'trial': trial.id,
        'ended': trial.status,
        'end': trial.reward if trial.status == 'completed' else None,
        'reason': trial.reason,
        'decisions': trial.decisions,
        'rewards': [each.reward for each in measurements],
    }
    diverges = trial.status == 'infeasible'
    for unit in UNITS:
        used = resources.consumed(measurements, unit)
        # A trial without measurements has no known resource.
        if unit == 'steps' or not measurements or any(used):
            row[unit] = [*used, _next(used)] if diverges else used
    return row


def _next(used: list[float]) -> float:
    """Estimates the resource at a failure: as much as to the next measurement."""
    if len(used) < 2:
        return 2 * used[0] if used else 0.0
    return used[-1] + used[-1] - used[-2]
