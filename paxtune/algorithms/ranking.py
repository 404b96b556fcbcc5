"""Order of completed trials: by their reward, or by fronts and crowding for several."""

import heapq
import operator
from collections.abc import Sequence
from typing import Any

from paxtune.algorithms.base import Observation
from paxtune.objectives.pareto import Fitness, crowded_fitness

_CHANGING = 10  # Passes that are not kept.


def best_trials(
    trials: Sequence[Observation], count: int | None = None, memo: dict[str, Any] | None = None
) -> list[Observation]:
    """Returns the best completed trials, the best first.

    Several rewards rank by fronts and, within a front, the least crowded trials first.

    Args:
        count: number of trials; None for all.
        memo: as in `survivors`.

    Example:
        >>> scores = ((0.0, 4.0), (1.0, 3.0), (2.0, 2.9), (4.0, 0.0), (0.0, 0.0))
        >>> trials = [Observation(i, {}, 'completed', each) for i, each in enumerate(scores)]
        >>> [trial.id for trial in best_trials(trials, 4)]
        [0, 3, 2, 1]
    """
    count = len(trials) if count is None else count
    if not trials or len(trials[0].scores) == 1:
        return heapq.nlargest(count, trials, key=lambda trial: trial.scores)
    kept, fitness = survivors(trials, count, memo)
    order = sorted(range(len(kept)), key=fitness.__getitem__, reverse=True)
    return [kept[index] for index in order]


def survivors(
    trials: Sequence[Observation], size: int, memo: dict[str, Any] | None = None
) -> tuple[Sequence[Observation], Sequence[Fitness]]:
    """The best trials, and their fitness among each other.

    The selection runs in passes over a few trials, because the memory of ranks is quadratic. A
    trial that a subset displaces would be displaced by the whole set, too.

    Args:
        memo: keeps all but the last passes for the next call.
    """
    memo, name = {} if memo is None else memo, f'survivors of {size}'
    kept = list(trials[:size])
    fitness = crowded_fitness([trial.scores for trial in kept])
    begun = size
    before, *found = memo.get(name, ([],))
    if before and len(before) <= len(trials) and all(map(operator.is_, before, trials)):
        begun, (kept, fitness) = len(before), found
    # Running trials may end in any order, and change the last passes.
    last = len(trials) - _CHANGING * size
    for start in range(begun, len(trials), size):
        if last - size < start <= last:
            memo[name] = trials[:start], kept, fitness
        pool = kept + list(trials[start : start + size])
        fitness = crowded_fitness([trial.scores for trial in pool])
        best = sorted(range(len(pool)), key=lambda index: fitness[index], reverse=True)[:size]
        kept = [pool[index] for index in best]
        fitness = [fitness[index] for index in best]
    return kept, fitness
