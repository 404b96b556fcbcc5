"""Six of the noiseless functions of BBOB, one at least of each of its five groups.

Their definitions are those of Hansen, Finck, Ros and Auger (2009), Real-Parameter Black-Box
Optimization Benchmarking 2009: Noiseless Functions Definitions (INRIA RR-6829). They are its f3,
f6, f9 (moved), f12, f17 and f21. The smallest value is 0, and it is reached inside the box
[-5, 5]^d, outside of which nothing is asked, so that the penalties there are left out.
Shifts and rotations are drawn from a seed of our own, not from that of COCO.
"""

import dataclasses
import zlib
from collections.abc import Callable

import numpy as np

BOUND = 5.0

_Rng = np.random.Generator
_Of = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Function:
    """One function, shifted and rotated.

    Attributes:
        of: points [n, d] to values [n]; the smallest is 0.
        optimum: [d], where it is smallest.
    """

    of: _Of
    optimum: np.ndarray


def function(name: str, dimension: int, seed: int) -> Function:
    """The function with the shift and the rotation that a seed gives it.

    Args:
        name: one of `NAMES`.
        dimension: d, at least 2.
        seed: of the instance.
    """
    rng = np.random.default_rng([zlib.crc32(name.encode()), dimension, seed])
    return _FUNCTIONS[name](dimension, rng)


def _shift(dimension: int, rng: _Rng) -> np.ndarray:
    return rng.uniform(-4.0, 4.0, dimension)


def _rotation(dimension: int, rng: _Rng) -> np.ndarray:
    """An orthogonal matrix, uniform over all."""
    q, r = np.linalg.qr(rng.standard_normal((dimension, dimension)))
    return q * np.sign(np.diag(r))


def _along(dimension: int) -> np.ndarray:
    """(i - 1) / (d - 1) for i from 1 to d."""
    return np.arange(dimension) / (dimension - 1)


def _scaling(alpha: float, dimension: int) -> np.ndarray:
    """The diagonal of Λ^α."""
    return alpha ** (_along(dimension) / 2)


def _oscillated(x: np.ndarray) -> np.ndarray:
    """T_osz."""
    log = np.log(np.abs(np.where(x == 0, 1.0, x)))
    first, second = np.where(x > 0, 10.0, 5.5), np.where(x > 0, 7.9, 3.1)
    return np.sign(x) * np.exp(log + 0.049 * (np.sin(first * log) + np.sin(second * log)))


def _asymmetric(beta: float, x: np.ndarray) -> np.ndarray:
    """T_asy^β of points [n, d]."""
    positive = np.maximum(x, 0.0)
    return np.where(x > 0, positive ** (1 + beta * _along(x.shape[-1]) * np.sqrt(positive)), x)


def _rastrigin(dimension: int, rng: _Rng) -> Function:
    optimum, scaling = _shift(dimension, rng), _scaling(10.0, dimension)

    def of(x: np.ndarray) -> np.ndarray:
        z = scaling * _asymmetric(0.2, _oscillated(x - optimum))
        return 10 * (1 - np.cos(2 * np.pi * z)).sum(-1) + (z**2).sum(-1)

    return Function(of, optimum)


def _attractive_sector(dimension: int, rng: _Rng) -> Function:
    optimum = _shift(dimension, rng)
    first, second = _rotation(dimension, rng), _rotation(dimension, rng)
    matrix = second @ np.diag(_scaling(10.0, dimension)) @ first

    def of(x: np.ndarray) -> np.ndarray:
        z = (x - optimum) @ matrix.T
        weighted = np.where(z * optimum > 0, 100.0, 1.0) * z
        return _oscillated((weighted**2).sum(-1)) ** 0.9

    return Function(of, optimum)


def _rosenbrock(dimension: int, rng: _Rng) -> Function:
    # Rotated as f9, whose optimum is near the middle of the box, where a search may well begin; so
    # it is moved, as that of f8.
    rotation, factor = _rotation(dimension, rng), max(1.0, dimension**0.5 / 8)
    optimum = 0.75 * _shift(dimension, rng)

    def of(x: np.ndarray) -> np.ndarray:
        z = factor * (x - optimum) @ rotation.T + 1.0
        here, after = z[:, :-1], z[:, 1:]
        return (100 * (here**2 - after) ** 2 + (here - 1) ** 2).sum(-1)

    return Function(of, optimum)


def _bent_cigar(dimension: int, rng: _Rng) -> Function:
    optimum, rotation = _shift(dimension, rng), _rotation(dimension, rng)

    def of(x: np.ndarray) -> np.ndarray:
        z = _asymmetric(0.5, (x - optimum) @ rotation.T) @ rotation.T
        return z[:, 0] ** 2 + 1e6 * (z[:, 1:] ** 2).sum(-1)

    return Function(of, optimum)


def _schaffers(dimension: int, rng: _Rng) -> Function:
    optimum = _shift(dimension, rng)
    first, second = _rotation(dimension, rng), _rotation(dimension, rng)
    scaling = _scaling(10.0, dimension)

    def of(x: np.ndarray) -> np.ndarray:
        z = scaling * (_asymmetric(0.5, (x - optimum) @ first.T) @ second.T)
        s = np.sqrt(z[:, :-1] ** 2 + z[:, 1:] ** 2)
        return (np.sqrt(s) * (1 + np.sin(50 * s**0.2) ** 2)).mean(-1) ** 2

    return Function(of, optimum)


def _gallagher(dimension: int, rng: _Rng) -> Function:
    count = 101
    rotation = _rotation(dimension, rng)
    peaks = rng.uniform(-BOUND, BOUND, (count, dimension))
    peaks[0] = _shift(dimension, rng)
    heights = np.array([10.0, *(1.1 + 8 * np.arange(count - 1) / (count - 2))])
    others = 1000 ** (2 * rng.permutation(count - 1) / (count - 2))
    widths = np.stack(
        [rng.permutation(_scaling(alpha, dimension)) / alpha**0.25 for alpha in (1000.0, *others)]
    )
    rotated = peaks @ rotation.T

    def of(x: np.ndarray) -> np.ndarray:
        z = x @ rotation.T
        # One peak after another: all at once would take [n, 101, d].
        distances = [((z - peak) ** 2 @ width) for peak, width in zip(rotated, widths, strict=True)]
        reached = heights[:, None] * np.exp(-np.stack(distances) / (2 * dimension))
        return _oscillated(10 - reached.max(0)) ** 2

    return Function(of, peaks[0])


_FUNCTIONS: dict[str, Callable[[int, _Rng], Function]] = {
    'rastrigin': _rastrigin,
    'attractive_sector': _attractive_sector,
    'rosenbrock': _rosenbrock,
    'bent_cigar': _bent_cigar,
    'schaffers': _schaffers,
    'gallagher': _gallagher,
}

NAMES = tuple(_FUNCTIONS)
