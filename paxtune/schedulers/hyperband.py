import bisect
import functools
import itertools
import math
from collections.abc import Callable, Sequence

from paxtune.schedulers.base import Curves, TrialCurve, column
from paxtune.schedulers.promoting_asha import PromotingAsha

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class Hyperband(PromotingAsha):
    """Asynchronous Hyperband (Li et al. 2018, 2020): a hedge against misleading early ranks.

    Trials belong to brackets. The first bracket pauses trials from the lowest rung on, as
    `PromotingAsha` does; each further one from the next rung on; the last one pauses none. Trials
    are compared within their bracket. The trial's number determines its bracket, in proportions
    that give each bracket about the same total resource. When the study has no room for more
    trials, each bracket trains one trial to its end.

    Example:
        >>> scheduler = Hyperband(min_resource=10)
        >>> def rungs(id: int) -> list[float]:
        ...     return list(scheduler.rung_levels(TrialCurve(id, 'running', [], [], 100.0)))
        >>> [rungs(id) for id in (1, 2, 5)]
        [[30.0, 90.0], [10.0, 30.0, 90.0], [10.0, 30.0, 90.0]]
    """

    def rung_level_function(self) -> Callable[[TrialCurve], Sequence[float]]:
        all_levels, factor = super().rung_level_function(), self.reduction_factor

        def levels_of_bracket(curve: TrialCurve) -> Sequence[float]:
            levels = all_levels(curve)
            return levels[_bracket(curve.id, len(levels), factor) :]

        return levels_of_bracket

    def _brackets(self, curves: Curves) -> Sequence[int]:
        levels, factor = super().rung_level_function(), self.reduction_factor
        return column(
            curves, 'bracket', lambda curve: _bracket(curve.id, len(levels(curve)), factor)
        )


def _bracket(trial: int, num_rungs: int, factor: int) -> int:
    """The bracket of a trial, which is the number of lowest rungs that it skips."""
    # Multiples of the golden ratio are spread evenly, however many there are.
    return bisect.bisect_right(_ends(num_rungs, factor), trial * _GOLDEN % 1.0)


@functools.lru_cache(maxsize=1024)
def _ends(num_rungs: int, factor: int) -> list[float]:
    """The cumulative shares of the brackets, without the last one.

    Example:
        >>> [round(end * 49) for end in _ends(3, 3)]
        [27, 39, 45]
    """
    halvings = range(num_rungs, -1, -1)
    sizes = [-(-(num_rungs + 1) * factor**count // (count + 1)) for count in halvings]
    return [end / sum(sizes) for end in itertools.accumulate(sizes[:-1])]
