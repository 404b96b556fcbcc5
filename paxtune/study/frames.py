"""Studies as tables."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from paxtune.search_space.labels import labels

if TYPE_CHECKING:
    import pandas

    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

_ABOUT = (
    'stopped', 'reason', 'attempt', 'origin', 'parent', 'repeat', 'repeat_of', 'created',
    'completed', 'seconds',
)  # fmt: skip


def trial_columns(study: 'Study', trials: Iterable['Trial']) -> list[str]:
    """The columns of a table of trials: all decisions of the space, all metrics of the trials."""
    metrics = dict.fromkeys(name for trial in trials for name in trial.metrics)
    return [
        'trial',
        'state',
        *reward_columns(study),
        *(f'decisions.{path}' for path in study.space.paths),
        *(f'metrics.{name}' for name in sorted(metrics)),
        *_ABOUT,
    ]


def reward_columns(study: 'Study') -> list[str]:
    """The columns of the rewards: their labels, numbered where they are equal."""
    return [str(name) for name in labels([reward.label for reward in study.rewards])]


def trial_row(trial: 'Trial', rewards: list[str]) -> dict[str, Any]:
    """A trial by column; what it does not have is not there."""
    row: dict[str, Any] = {'trial': trial.id, 'state': trial.state}
    row |= dict.fromkeys(rewards) | dict(zip(rewards, trial.rewards, strict=False))
    row |= {f'decisions.{path}': value for path, value in trial.decisions.items()}
    row |= {f'metrics.{name}': value for name, value in trial.metrics.items()}
    return row | {
        'stopped': trial.stop_reason is not None,
        'reason': trial.reason,
        'attempt': trial.attempt,
        'origin': trial.origin,
        'parent': trial.parent,
        'repeat': trial.repeat,
        'repeat_of': trial.repeat_of,
        'created': trial.created,
        'completed': trial.completed,
        'seconds': trial.seconds,
    }


def trials_frame(study: 'Study') -> 'pandas.DataFrame':
    """A row for each trial; see `Study.to_pandas`."""
    # Imported here: it takes half a second, and who does not ask for tables need not wait.
    import pandas

    trials, rewards = study.trials, reward_columns(study)
    rows = [trial_row(trial, rewards) for trial in trials]
    frame = pandas.DataFrame(rows, columns=trial_columns(study, trials))
    return frame.set_index('trial')
