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


def logs(regrets: Sequence[float] | Sequence[Sequence[float]], floor: float = FLOOR) -> np.ndarray:
    """Logarithms of regrets of any shape, none of them below that of the floor."""
    return np.log(np.maximum(np.array(regrets, float), floor))


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
    """A method's regret by that of the best of its rivals; below 1 it is ahead.

    Attributes:
        overall: by the rival that is best over the problems that both have.
        each: by the rival that is best on each problem.
    """

    overall: Interval
    each: Interval


def ratios(ours: Logs, rivals: Sequence[Logs]) -> Ratios:
    """Ratios of geometric means over the problems of the method; problems and seeds drawn again.

    A rival is compared on the problems that it has, of those some rival has. It is the best one
    anew in each replicate, so luck that makes it so is part of it.
    """
    rng = np.random.default_rng(0)
    problems = sorted(set(ours).intersection(set().union(*rivals)))
    methods = [ours, *rivals]
    exact = np.array(
        [[[each[name].mean() if name in each else np.nan for name in problems]] for each in methods]
    )
    which = _problems_again(problems, rng)
    drawn = np.stack([_again(each, problems, which, rng) for each in methods])
    overall, each = (
        _interval(float(compared(exact)[0]), compared(drawn)) for compared in (_overall, _on_each)
    )
    return Ratios(overall, each)


def _overall(means: np.ndarray) -> np.ndarray:
    """Logarithms of ratios [replicates], of the means [methods, replicates, problems]."""
    differences = means[0] - means[1:]
    there = np.isfinite(differences)
    # A replicate may hold no problem of a rival: that one is not the best then.
    sums, counts = np.where(there, differences, 0.0).sum(-1), there.sum(-1)
    of_rivals = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
    return np.asarray(of_rivals.max(0))


def _on_each(means: np.ndarray) -> np.ndarray:
    """The same, by the best one of each problem."""
    return np.asarray((means[0] - np.nanmin(means[1:], 0)).mean(-1))


def on_problem(name: str, ours: Logs, rivals: Sequence[Logs]) -> Interval:
    """The ratio on one problem, by the best of the rivals that have it."""
    there = [{name: each[name]} for each in rivals if name in each]
    return ratios({name: ours[name]}, there).overall


def behind(ours: Logs, rivals: Sequence[Logs]) -> list[str]:
    """The problems on which a method's regret is above that of the best rival, surely so."""
    problems = sorted(set(ours).intersection(set().union(*rivals)))
    return [name for name in problems if on_problem(name, ours, rivals).low > 1]


def _problems_again(problems: Sequence[str], rng: np.random.Generator) -> np.ndarray:
    """Problems drawn again: their indices [replicates, problems]."""
    return rng.integers(len(problems), size=(_REPLICATES, len(problems)))


def _again(
    of_method: Logs, problems: Sequence[str], which: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Means over seeds drawn again, of problems that were; NaN for one that is not there."""
    means = np.full(which.shape, np.nan)
    for index, name in enumerate(problems):
        if name not in of_method:
            continue
        values, places = of_method[name], which == index
        drawn = rng.integers(len(values), size=(int(places.sum()), len(values)))
        means[places] = values[drawn].mean(-1)
    return means


def _interval(value: float, drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(math.exp(value), math.exp(low), math.exp(high))
