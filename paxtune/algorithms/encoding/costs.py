"""Predicted costs of points, for searches whose budget is in hours.

Expected improvement per second: Snoek et al., "Practical Bayesian optimization", NeurIPS 2012.
"""

from collections.abc import Sequence

import numpy as np

from paxtune.algorithms.base import Observation

_MIN_COSTS = 4
_RIDGE = 0.1  # Weight of the prior that no decision changes the cost, in trials.


def log_cost_slopes(trials: Sequence[Observation], points: np.ndarray) -> np.ndarray:
    """Fits a linear model of the logarithm of costs.

    Numbers are on the scale of their range, so a width on a logarithmic scale has a power of it as
    its cost.

    Args:
        trials: those whose costs are known count.
        points: encoded decisions of the trials [N, columns].

    Returns:
        The slope of each column [columns]; 0 where fewer than four costs are known.

    Example:
        >>> trials = [
        ...     Observation(i + 1, {}, 'completed', (0.0,), cost=10.0**x)
        ...     for i, x in enumerate((0.0, 0.2, 0.5, 0.9, 1.0))
        ... ]
        >>> points = np.array([[0.0], [0.2], [0.5], [0.9], [1.0]])
        >>> log_cost_slopes(trials, points).round(1)
        array([2.])
    """
    known = [i for i, trial in enumerate(trials) if trial.cost]
    if len(known) < _MIN_COSTS:
        return np.zeros(points.shape[1])
    logs = np.log([trials[i].cost or 1.0 for i in known])
    centered = points[known] - points[known].mean(axis=0)
    gram = centered.T @ centered + _RIDGE * np.eye(points.shape[1])
    return np.linalg.solve(gram, centered.T @ (logs - logs.mean()))
