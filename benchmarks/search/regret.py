"""Normalized regret, and how sure one may be of it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.search.problems import Instance

FLOOR = 1e-3
"""Smaller regrets count as this, or else the mean of logarithms would be that of lucky hits."""

_REPLICATES = 2000


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number and the 95 % interval around it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f'{self.value:.3g} ({self.low:.3g}–{self.high:.3g})'


def regret(values: Sequence[float | None], instance: Instance, count: int) -> float:
    """The normalized regret of the first trials of a run.

    It is (best so far - optimum) / (median of random draws - optimum), and 1 as long as nothing is
    feasible.

    Example:
        >>> instance = Instance(lambda: lambda values: None, best=1.0, median=3.0)
        >>> regret([None, 4.0, 2.0, 1.5], instance, 3)
        0.5
    """
    feasible = [value for value in values[:count] if value is not None and math.isfinite(value)]
    if not feasible:
        return 1.0
    return (min(feasible) - instance.best) / (instance.median - instance.best)


Logs = Mapping[str, np.ndarray]
"""By problem: the logarithms of the regrets of all seeds, [seeds]."""


def logs(regrets: Sequence[float]) -> np.ndarray:
    """Logarithms of regrets, none of them below that of `FLOOR`."""
    return np.log(np.maximum(np.array(regrets, float), FLOOR))


def over_seeds(of_problem: np.ndarray) -> Interval:
    """The geometric mean over the seeds of one problem; seeds are drawn again."""
    rng = np.random.default_rng(0)
    drawn = rng.choice(of_problem, (_REPLICATES, len(of_problem))).mean(-1)
    return _interval(float(of_problem.mean()), drawn)


def over_problems(of_method: Logs) -> Interval:
    """The geometric mean over problems; problems and seeds are drawn again."""
    rng = np.random.default_rng(0)
    problems = sorted(of_method)
    exact = np.array([[of_method[name].mean() for name in problems]])
    drawn = _again(of_method, problems, _problems_again(problems, rng), rng)
    return _interval(float(exact.mean()), drawn.mean(-1))


def center(of_method: Logs) -> tuple[float, float]:
    """The arithmetic mean and the median of all regrets of a method.

    Example:
        >>> mean, median = center({'a': logs([0.1, 0.3, 0.8])})
        >>> round(mean, 3), round(median, 3)
        (0.4, 0.3)
    """
    regrets = np.exp(np.concatenate(list(of_method.values())))
    return float(regrets.mean()), float(np.median(regrets))


@dataclasses.dataclass(frozen=True)
class Ratios:
    """A method's regret by that of the better of its rivals; below 1 it is ahead.

    Attributes:
        overall: by the rival that is better over all problems.
        each: by the rival that is better on each problem.
    """

    overall: Interval
    each: Interval


def ratios(ours: Logs, rivals: Sequence[Logs]) -> Ratios:
    """Ratios of geometric means over the problems that all have; problems and seeds drawn again.

    A rival is the better one anew in each replicate, so luck that makes it so is part of it.
    """
    rng = np.random.default_rng(0)
    problems, methods = sorted(set(ours).intersection(*rivals)), [ours, *rivals]
    exact = np.array([[[each[name].mean() for name in problems]] for each in methods])
    which = _problems_again(problems, rng)
    drawn = np.stack([_again(each, problems, which, rng) for each in methods])
    overall, each = (
        _interval(float(compared(exact)[0]), compared(drawn)) for compared in (_overall, _on_each)
    )
    return Ratios(overall, each)


def _overall(means: np.ndarray) -> np.ndarray:
    """Logarithms of ratios [replicates], of the means [methods, replicates, problems]."""
    over = means.mean(-1)
    return np.asarray(over[0] - over[1:].min(0))


def _on_each(means: np.ndarray) -> np.ndarray:
    """The same, by the better one of each problem."""
    return np.asarray((means[0] - means[1:].min(0)).mean(-1))


def behind(ours: Logs, rivals: Sequence[Logs]) -> list[str]:
    """The problems on which a method's regret is above that of the better rival, surely so."""
    problems = sorted(set(ours).intersection(*rivals))
    found = (
        ratios({name: ours[name]}, [{name: each[name]} for each in rivals]) for name in problems
    )
    return [name for name, each in zip(problems, found, strict=True) if each.overall.low > 1]


def _problems_again(problems: Sequence[str], rng: np.random.Generator) -> np.ndarray:
    """Problems drawn again: their indices [replicates, problems]."""
    return rng.integers(len(problems), size=(_REPLICATES, len(problems)))


def _again(
    of_method: Logs, problems: Sequence[str], which: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Means over seeds drawn again, of problems that were: [replicates, problems]."""
    means = np.zeros(which.shape)
    for index, name in enumerate(problems):
        values, places = of_method[name], which == index
        drawn = rng.integers(len(values), size=(int(places.sum()), len(values)))
        means[places] = values[drawn].mean(-1)
    return means


def _interval(value: float, drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(math.exp(value), math.exp(low), math.exp(high))
