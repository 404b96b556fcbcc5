"""Normalized regret, and how sure one may be of it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.search.problems import Instance

FLOOR = 1e-3
"""What is below counts as this much, or else the mean of logarithms would be that of lucky hits."""

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
    drawn = [
        np.mean([_again(of_method[name], rng) for name in rng.choice(problems, len(problems))])
        for _ in range(_REPLICATES)
    ]
    return _interval(_mean(of_method, problems), np.array(drawn))


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
    exact = _compared([[each[name].mean() for name in problems] for each in methods])
    drawn = []
    for _ in range(_REPLICATES):
        names = [str(name) for name in rng.choice(problems, len(problems))]
        drawn.append(_compared([[_again(m[name], rng) for name in names] for m in methods]))
    overall, each = np.array(drawn).T
    return Ratios(_interval(exact[0], overall), _interval(exact[1], each))


def _compared(means: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Logarithms of both ratios, of the means [methods, problems], ours first."""
    table = np.array(means)
    own, others = table[0], table[1:]
    return float(own.mean() - others.mean(1).min()), float((own - others.min(0)).mean())


def behind(ours: Logs, rivals: Sequence[Logs]) -> list[str]:
    """The problems on which a method's regret is above that of the better rival, surely so."""
    problems = sorted(set(ours).intersection(*rivals))
    found = (
        ratios({name: ours[name]}, [{name: each[name]} for each in rivals]) for name in problems
    )
    return [name for name, each in zip(problems, found, strict=True) if each.overall.low > 1]


def _again(values: np.ndarray, rng: np.random.Generator) -> float:
    """The mean of values that are drawn again."""
    return float(values[rng.integers(len(values), size=len(values))].mean())


def _mean(of_method: Logs, problems: Sequence[str]) -> float:
    return float(np.mean([of_method[name].mean() for name in problems]))


def _interval(value: float, drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(math.exp(value), math.exp(low), math.exp(high))
