"""Successive halving that begins at different rungs."""

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Sequence

from paxtune.schedulers.base import Curve
from paxtune.schedulers.promoting_asha import PromotingAsha

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class Hyperband(PromotingAsha):
    """Asynchronous Hyperband (Li et al. 2018, 2020): a hedge against early ranks that fool.

    Trials belong to brackets. In the first one they are paused from the lowest rung on, as with
    `PromotingAsha`; in each further one from the next rung on; in the last one they are not paused
    at all. A trial's rivals are those of its bracket. Its number says which that is, such that the
    brackets grow in the proportions of Hyperband: each gets about the same budget. When the study
    has no room for more, each bracket brings one trial to its end.

    Example:
        >>> policy = Hyperband(min_budget=10)
        >>> [list(policy.rungs(Curve(id, 'running', [], [], budget=100.0))) for id in (1, 2, 5)]
        [[30.0, 90.0], [10.0, 30.0, 90.0], [10.0, 30.0, 90.0]]
    """

    def ladder(self) -> Callable[[Curve], Sequence[float]]:
        rungs, factor = super().ladder(), self.reduction_factor

        def rungs_of_bracket(curve: Curve) -> Sequence[float]:
            found = rungs(curve)
            return found[_bracket(curve.id, len(found), factor) :]

        return rungs_of_bracket

    def brackets(self, curves: Sequence[Curve]) -> list[Sequence[Curve]]:
        rungs, factor = super().ladder(), self.reduction_factor
        brackets: dict[int, list[Curve]] = {}
        for curve in curves:
            number = _bracket(curve.id, len(rungs(curve)), factor)
            brackets.setdefault(number, []).append(curve)
        return [brackets[number] for number in sorted(brackets)]


def _bracket(trial: int, num_rungs: int, factor: int) -> int:
    """How many of the lowest rungs a trial has nothing to do with."""
    # Multiples of the golden ratio are spread evenly, however many there are.
    return bisect.bisect_right(_ends(num_rungs, factor), trial * _GOLDEN % 1.0)


@functools.lru_cache(maxsize=1024)
def _ends(num_rungs: int, factor: int) -> list[float]:
    """Up to where the shares of the brackets go, from 0 to 1, that of the last one left out.

    Example:
        >>> [round(end * 49) for end in _ends(3, 3)]
        [27, 39, 45]
    """
    halvings = range(num_rungs, -1, -1)
    sizes = [-(-(num_rungs + 1) * factor**count // (count + 1)) for count in halvings]
    return [end / sum(sizes) for end in itertools.accumulate(sizes[:-1])]
