"""A study as a notebook shows it."""

import collections
from collections.abc import Mapping, Sequence

from paxtune.objectives.rewards import Reward
from paxtune.study.frames import reward_headings
from paxtune.study.record import Status
from paxtune.study.trial import Trial
from trainer.symbolic.html import html_table

_MOST_TRIALS = 10


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
    counted = ', '.join(f'{counts[how]} {how}' for how in Status if counts[how]) or 'no trial'
    listed = best[:_MOST_TRIALS]
    paths = [path for path in names if any(path in trial.decisions for trial in listed)]
    headings = ['trial', 'state', *reward_headings(rewards), *map(names.get, paths)]
    rows = [
        [trial.id, trial.status, *trial.rewards, *(trial.decisions.get(path) for path in paths)]
        for trial in listed
    ]
    which = 'The best trials:' if len(rewards) == 1 else f'The front has {len(best)} trials:'
    caption = f'Study {where}: {counted}' + (f'. {which}' if rows else '')
    return html_table(caption, headings, rows)
