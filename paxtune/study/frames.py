"""Trials as tables."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from paxtune.objectives.rewards import Reward
from paxtune.search_space.labels import candidate_names
from paxtune.study.trial import Trial

if TYPE_CHECKING:
    import pandas

_ABOUT = (
    'stopped', 'reason', 'attempt', 'origin', 'parent', 'replicate', 'replicate_of', 'created',
    'completed', 'seconds',
)  # fmt: skip


def trial_columns(
    trials: Iterable[Trial], paths: Iterable[str], rewards: Sequence[Reward]
) -> list[str]:
    """Lists the columns of a table of trials, which have a column for each of their metrics."""
    trials = list(trials)
    metrics = dict.fromkeys(name for trial in trials for name in trial.metrics)
    attributes = dict.fromkeys(name for trial in trials for name in trial.attributes)
    return [
        'trial',
        'state',
        *reward_columns(rewards),
        *(f'decisions.{path}' for path in paths),
        *(f'metrics.{name}' for name in sorted(metrics)),
        *(f'attributes.{name}' for name in sorted(attributes)),
        *_ABOUT,
    ]


def reward_columns(rewards: Sequence[Reward]) -> list[str]:
    """Lists the columns of rewards: their labels, numbered where they are equal."""
    return [str(name) for name in candidate_names([reward.label for reward in rewards])]


def reward_headings(rewards: Sequence[Reward]) -> list[str]:
    """Lists the same for tables: a single reward that is no plain metric is `reward`."""
    columns = reward_columns(rewards)
    return ['reward'] if len(columns) == 1 and '(' in columns[0] else columns


def trial_row(trial: Trial, rewards: list[str]) -> dict[str, Any]:
    """Maps columns to the values of a trial; missing values have no entry."""
    row: dict[str, Any] = {'trial': trial.id, 'state': trial.status}
    row |= dict.fromkeys(rewards) | dict(zip(rewards, trial.rewards, strict=False))
    row |= {f'decisions.{path}': value for path, value in trial.decisions.items()}
    row |= {f'metrics.{name}': value for name, value in trial.metrics.items()}
    row |= {f'attributes.{name}': value for name, value in trial.attributes.items()}
    return row | {
        'stopped': trial.stop_reason is not None,
        'reason': trial.reason,
        'attempt': trial.attempt,
        'origin': trial.lineage.origin,
        'parent': trial.lineage.parent,
        'replicate': trial.lineage.replicate,
        'replicate_of': trial.lineage.replicate_of_here,
        'created': trial.created,
        'completed': trial.completed,
        'seconds': trial.seconds,
    }


def trials_frame(
    trials: Sequence[Trial], paths: Iterable[str], rewards: Sequence[Reward]
) -> 'pandas.DataFrame':
    """Makes a table with a row for each trial; see `StudyView.to_pandas`."""
    # Imported here: it takes half a second, and most programs ask for no tables.
    import pandas

    names = reward_columns(rewards)
    rows = [trial_row(trial, names) for trial in trials]
    frame = pandas.DataFrame(rows, columns=trial_columns(trials, paths, rewards))
    return frame.set_index('trial')
