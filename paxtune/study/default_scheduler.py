"""The scheduler of a search that leaves the choice to the study."""

from paxtune.config.search import Search
from paxtune.schedulers.adaptive import Adaptive
from paxtune.schedulers.base import Scheduler
from paxtune.schedulers.rungs import first_rung
from paxtune.search_space.space import Space

_FEW = 16
"""Trials: rungs that so few reach order hardly anything, and full training is worth its price."""


def default_scheduler(search: Search, space: Space) -> tuple[Scheduler | None, str]:
    """Chooses a scheduler, and says why.

    It is `Adaptive` where trials can be compared before they end, and are more than 16. Other
    searches train all trials to their ends.

    Args:
        search: the configuration, whose own scheduler does not matter here.
        space: the space of experiments or other values.

    Returns:
        The scheduler, None for training all trials to their ends, and the reason.

    Example:
        >>> import pyglove as pg
        >>> from paxtune.config.budget import Budget
        >>> space = Space(pg.Dict(x=pg.floatv(0.0, 1.0)))
        >>> default_scheduler(Search(None, Budget(64)), space)
        (None, 'trials are functions')
    """
    if not space.is_tunable:
        return None, 'trials are functions'
    number = search.budget.trials or (space.size or 0) * search.replicates
    if 0 < number <= _FEW:
        return None, f'{number} trials'
    if why_not := _why_not(search, space):
        return None, why_not
    train, lowest = space.value.train, first_rung(space.value)
    if not lowest or lowest['min_resource'] >= train.num_train_steps:
        return None, 'trials of searched lengths, or without evaluations before their ends'
    count = f'{number} ' if number else ''
    why = f'{count}trials of {train.num_train_steps:,} steps, evaluated every'
    return Adaptive(**lowest), f'{why} {train.evaluation.every:,}'


def _why_not(search: Search, space: Space) -> str:
    if len(search.rewards) != 1:
        return f'{len(search.rewards)} rewards'
    if search.replicates > 1:
        return 'replicates, which are compared at their ends'
    if space.sub_experiments:
        return 'trials of several sub-experiments'
    if getattr(space.value.train, 'checkpoints', None) is None:
        return 'trials without checkpoints, which cannot pause'
    return ''
