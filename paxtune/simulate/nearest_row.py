"""Rows of numbers as points of a box, and the row next to a point.

It imports NumPy only: benchmarks use it in environments without paxtune.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray

_DECADES = 2.0


def one_minus_betas(names: Sequence[str], hp: Floats) -> tuple[list[str], Floats]:
    """Replaces columns by 1 - β if their name begins with 'beta' and their numbers are in (0, 1).

    Momenta crowd near 1: their distance from it has a logarithmic scale.

    Args:
        hp: [n, columns].

    Returns:
        The names, `one_minus_<name>` for these, and the numbers.

    Example:
        >>> names, hp = one_minus_betas(['rate', 'beta1'], np.array([[0.25, 0.75]]))
        >>> names, hp.tolist()
        (['rate', 'one_minus_beta1'], [[0.25, 0.25]])
    """
    inside = [bool(each) for each in np.atleast_1d(((hp > 0) & (hp < 1)).all(0))]
    is_beta = [each.startswith('beta') and is_ for each, is_ in zip(names, inside, strict=True)]
    labels = [
        f'one_minus_{each}' if is_ else each for each, is_ in zip(names, is_beta, strict=True)
    ]
    return labels, np.where(is_beta, 1 - hp, hp)


def is_logarithmic(low: float, high: float) -> bool:
    """True if a range is searched on a logarithmic scale: positive, over more than two decades.

    Example:
        >>> is_logarithmic(1e-4, 0.1), is_logarithmic(0.1, 0.9), is_logarithmic(0.0, 1e6)
        (True, False, False)
    """
    return low > 0 and bool(np.log10(high) - np.log10(low) > _DECADES)


class Box:
    """The box from the lowest to the highest number of each column, on its scale.

    Example:
        >>> box = Box([1e-4, 0.0], [1.0, 8.0], [True, False])
        >>> box.shares(np.array([0.01, 2.0])).tolist()
        [0.5, 0.25]
    """

    def __init__(self, low: Sequence[float], high: Sequence[float], is_log: Sequence[bool]) -> None:
        """Makes a box with each `high` above its `low`; both are above 0 on a logarithmic scale."""
        self._is_log = np.array(is_log, bool)
        self._low, high_ = self._scaled(np.array(low, float)), self._scaled(np.array(high, float))
        self._width = high_ - self._low

    def shares(self, numbers: Floats) -> Floats:
        """The positions of numbers [..., columns] in the box, from 0 to 1."""
        return np.asarray((self._scaled(numbers) - self._low) / self._width)

    def _scaled(self, numbers: Floats) -> Floats:
        if self._is_log.all():
            return np.log(numbers)
        scaled = np.array(numbers, float)
        scaled[..., self._is_log] = np.log(scaled[..., self._is_log])
        return scaled


class Unused:
    """Points of a box; each can be taken once."""

    def __init__(self, points: Floats) -> None:
        """Begins with all points unused: [n, columns]."""
        self._points = points
        self._used = np.zeros(len(points), bool)
        self.left = len(points)

    def take(self, point: Floats, among: Floats | None = None) -> int:
        """Takes the nearest unused point, and returns its index.

        Args:
            point: [columns].
            among: mask of the eligible points [n]; all by default.

        Raises:
            LookupError: no eligible point is left.
        """
        closed = self._used if among is None else self._used | ~among
        distances = ((self._points - point) ** 2).sum(-1)
        distances[closed] = np.inf
        index = int(distances.argmin())
        if closed[index]:
            raise LookupError('no row is left')
        self._used[index] = True
        self.left -= 1
        return index
