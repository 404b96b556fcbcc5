"""Scaling laws: fits of losses and of best settings to the size of models and to tokens."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from trainer.symbolic.errors import UserError

_HUBER = 1e-3
_STARTS = tuple(itertools.product((0.0, 5.0), (0.0, 5.0), (-1.0, 0.5), (0.25, 0.75), (0.25, 0.75)))
"""Of log A, log B, log E, alpha and beta."""

_CONFIDENCE = 0.9
_FEWEST = 6  # Runs: one more than a law has constants.
_FEWEST_SIZES = 3

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Point:
    """One training run.

    Attributes:
        params: number of parameters.
        tokens: number of training tokens.
        loss: at the end.
        learning_rate: the peak; None where it is not known.
        batch_size: None where it is not known.
    """

    params: float
    tokens: float
    loss: float
    learning_rate: float | None = None
    batch_size: float | None = None

    @property
    def flops(self) -> float:
        """Compute of the training: 6 operations per parameter and token (Kaplan et al. 2020)."""
        return 6 * self.params * self.tokens


@dataclasses.dataclass(frozen=True)
class LossLaw:
    """The loss E + A / params^alpha + B / tokens^beta (Hoffmann et al. 2022, section 3.3).

    Attributes:
        values: the constants by name: E, A, B, alpha, beta; and `optimal_params_exponent`, the
            power of compute with which the best number of parameters grows.
        intervals: of each, from 5 % to 95 % of fits to runs drawn again.
        error: root mean square of the relative errors.
    """

    values: dict[str, float]
    intervals: dict[str, Interval]
    error: float

    def loss(self, params: float, tokens: float) -> float:
        """Predicts the loss of a run."""
        v = self.values
        return v['E'] + v['A'] / params ** v['alpha'] + v['B'] / tokens ** v['beta']


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """A best setting as coefficient * compute^exponent.

    Attributes:
        coefficient: the value at one operation.
        exponent: 0 for a setting that stays the same.
        exponent_interval: 90 % interval of the exponent.
        points: (compute, best value) of each group of runs.
    """

    coefficient: float
    exponent: float
    exponent_interval: Interval
    points: tuple[tuple[float, float], ...]

    def at(self, flops: float) -> float:
        """The best setting at some compute."""
        return float(self.coefficient * flops**self.exponent)


def fit_loss(points: Sequence[Point], num_bootstrap: int = 100, seed: int = 0) -> LossLaw:
    """Fits a law by the Huber loss of logarithms, from several starts.

    Args:
        points: of each size and number of tokens, only the run with the lowest loss counts.
        num_bootstrap: fits for the intervals, each to runs drawn again with replacement.
        seed: of these draws.

    Raises:
        UserError: there are too few runs, sizes or numbers of tokens, or a number is not positive.

    Example:
        >>> loss = lambda n, d: 2 + 400 / n**0.35 + 900 / d**0.3
        >>> law = fit_loss(
        ...     [Point(n, d, loss(n, d)) for n in (1e6, 4e6, 2e7) for d in (1e7, 1e8, 1e9)]
        ... )
        >>> round(law.values['E'], 2), round(law.values['alpha'], 2)
        (2.0, 0.35)
    """
    best = [min(group, key=lambda p: p.loss) for group in _groups(points)]
    _require_enough(best)
    data = np.log([[p.params, p.tokens, p.loss] for p in best])
    theta = min((_fitted(data, start) for start in _STARTS), key=lambda fit: fit[1])[0]
    rng = np.random.default_rng(seed)
    drawn = [
        _constants(_fitted(data[rng.integers(0, len(data), len(data))], theta)[0])
        for _ in range(num_bootstrap)
    ]
    share = 100 * (1 - _CONFIDENCE) / 2
    values = _constants(theta)
    intervals = {name: _interval([each[name] for each in drawn], share) for name in values if drawn}
    return LossLaw(values, intervals, float(np.sqrt(np.mean(_residuals(theta, data) ** 2))))


def fit_best(points: Sequence[Point], setting: str) -> PowerLaw | None:
    """Fits the best value of a setting against compute.

    Runs of equal size and tokens are one group. Its best value is the vertex of the parabola
    through the lowest loss and its neighbours, on a logarithmic scale.

    Args:
        points: training runs.
        setting: 'learning_rate' or 'batch_size'.

    Returns:
        The law; None where fewer than three groups have several values.
    """
    found = []
    for group in _groups(points):
        known = [(value, p.loss) for p in group if (value := getattr(p, setting)) is not None]
        by_value = {v: min(loss for w, loss in known if w == v) for v, _ in known}
        if len(by_value) > 1:
            values = sorted(by_value)
            at = vertex(np.log(values), [by_value[value] for value in values])
            found.append((group[0].flops, math.exp(at)))
    if len({flops for flops, _ in found}) < _FEWEST_SIZES:
        return None
    line = stats.linregress(*np.log(found).T)
    spread = float(special.stdtrit(len(found) - 2, (1 + _CONFIDENCE) / 2) * line.stderr)
    interval = (float(line.slope) - spread, float(line.slope) + spread)
    return PowerLaw(math.exp(line.intercept), float(line.slope), interval, tuple(sorted(found)))


def vertex(values: Sequence[float] | np.ndarray, losses: Sequence[float] | np.ndarray) -> float:
    """The vertex of the parabola through the lowest finite loss and its two neighbours.

    At the end of the range, or beside a loss that is not finite, it is the value itself.

    Example:
        >>> vertex([0, 1, 2, 3], [9.0, 1.0, 0.5, 1.0])
        2.0
    """
    finite = np.where(np.isfinite(losses), losses, np.inf)
    at = int(np.argmin(finite))
    near = slice(at - 1, at + 2)
    if not 0 < at < len(finite) - 1 or not np.isfinite(finite[near]).all():
        return float(values[at])
    x = np.asarray(values, float)[near] - values[at]
    curve, line, _ = np.polyfit(x, finite[near], 2)
    return float(values[at] - line / (2 * curve) if curve > 0 else values[at])


def _groups(points: Sequence[Point]) -> list[list[Point]]:
    groups: dict[tuple[float, float], list[Point]] = {}
    for point in points:
        if math.isfinite(point.loss):  # A run that diverged says nothing on the law.
            groups.setdefault((point.params, point.tokens), []).append(point)
    return list(groups.values())


def _require_enough(best: Sequence[Point]) -> None:
    for point in best:
        if min(point.params, point.tokens, point.loss) <= 0:
            raise UserError(f'params, tokens and loss must be positive: {point}')
    sizes, tokens = ({getattr(p, name) for p in best} for name in ('params', 'tokens'))
    if len(best) < _FEWEST or min(len(sizes), len(tokens)) < _FEWEST_SIZES:
        raise UserError(
            f'a fit needs at least {_FEWEST} runs with different params or tokens, with at least '
            f'{_FEWEST_SIZES} values of each; there are {len(best)} runs, {len(sizes)} values of '
            f'params and {len(tokens)} of tokens'
        )


def _terms(theta: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Logarithms of the three terms of the loss [runs, 3]."""
    log_a, log_b, log_e, alpha, beta = theta
    n, d = data[:, 0], data[:, 1]
    return np.stack([log_a - alpha * n, log_b - beta * d, np.full_like(n, log_e)], axis=1)


def _residuals(theta: np.ndarray, data: np.ndarray) -> np.ndarray:
    residuals: np.ndarray = np.logaddexp.reduce(_terms(theta, data), axis=1) - data[:, 2]
    return residuals


def _fitted(data: np.ndarray, start: Sequence[float] | np.ndarray) -> tuple[np.ndarray, float]:
    """The constants next to a start, and their loss."""

    def jacobian(theta: np.ndarray, data: np.ndarray) -> np.ndarray:
        terms = _terms(theta, data)
        shares = np.exp(terms - np.logaddexp.reduce(terms, axis=1)[:, None])
        return np.hstack([shares, -shares[:, :2] * data[:, :2]])

    low, high = [-np.inf] * 3 + [0.0] * 2, np.inf
    solve: Any = optimize.least_squares
    fit = solve(
        _residuals,
        np.asarray(start),
        jacobian,
        bounds=(low, high),
        x_scale='jac',
        loss='huber',
        f_scale=_HUBER,
        args=(data,),
    )
    return fit.x, float(fit.cost)


def _constants(theta: np.ndarray) -> dict[str, float]:
    log_a, log_b, log_e, alpha, beta = map(float, theta)
    power = beta / (alpha + beta) if alpha + beta else math.nan
    a, b, e = (float(np.exp(each)) for each in (log_a, log_b, log_e))
    return {'E': e, 'A': a, 'B': b, 'alpha': alpha, 'beta': beta, 'optimal_params_exponent': power}


def _interval(values: Sequence[float], share: float) -> Interval:
    low, high = np.nanpercentile(values, [share, 100 - share])
    return float(low), float(high)
