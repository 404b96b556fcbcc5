"""A study as a notebook shows it."""

import collections
from collections.abc import Mapping, Sequence

from paxtune.objectives.rewards import Reward
from paxtune.study.columns import reward_headings
from paxtune.study.record import Status
from paxtune.study.trial import Trial
from trainer.command import counted
from trainer.symbolic.html import html_table

_MAX_TRIALS, _MAX_LISTED = 10, 30


def study_html(
    where: str,
    trials: Sequence[Trial],
    best: Sequence[Trial],
    rewards: Sequence[Reward],
    names: Mapping[str, str],
) -> str:
    """Renders the counts of trials, and the best ones, as HTML.

    Args:
        best: the best trials first, or the Pareto front.
        names: short names of decisions by path.
    """
    counts = collections.Counter(trial.status for trial in trials)
    states = ', '.join(f'{counts[how]} {how}' for how in Status if counts[how]) or 'no trial'
    which = (
        'The best trials:' if len(rewards) == 1 else f'The front has {counted(len(best), "trial")}:'
    )
    caption = f'Study {where}: {states}' + (f'. {which}' if best else '')
    listed = {trial: trial.rewards for trial in best[:_MAX_TRIALS]}
    return _table(caption, listed, reward_headings(rewards), names)


def trials_html(trials: Sequence[Trial], names: Mapping[str, str]) -> str:
    """Renders trials as HTML: the last ones, where they are many.

    Args:
        trials: in order.
        names: short names of decisions by path.
    """
    hidden = len(trials) - _MAX_LISTED
    caption = counted(len(trials), 'trial') + (f'. The last {_MAX_LISTED}:' if hidden > 0 else '')
    listed = {
        trial: [', '.join(f'{reward:.6g}' for reward in trial.rewards)]
        for trial in trials[-_MAX_LISTED:]
    }
    return _table(caption, listed, ['reward'], names)


def _table(
    caption: str,
    listed: Mapping[Trial, Sequence[object]],
    columns: Sequence[str],
    names: Mapping[str, str],
) -> str:
    """Renders trials with the cells of some columns, and their decisions."""
    paths = [path for path in names if any(path in trial.decisions for trial in listed)]
    headings = ['trial', 'state', *columns, *map(names.get, paths)]
    rows = [
        [trial.id, trial.status, *cells, *(trial.decisions.get(path) for path in paths)]
        for trial, cells in listed.items()
    ]
    return html_table(caption, headings, rows)
