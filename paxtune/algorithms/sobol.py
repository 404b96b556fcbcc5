"""Points of scrambled Sobol sequences, without the imports of `scipy.stats`."""

import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_BITS = 30


def sobol_point(dimensions: int, index: int, seed: int) -> list[float]:
    """Computes a point of a scrambled Sobol sequence: [dimensions], from 0 to 1.

    It is that point of `scipy.stats.qmc.Sobol`, with a generator of this seed, to the last bit.
    `scipy.stats` takes half a second to import, and its engine as many steps as there are points
    before. A point is the sum, modulo 2 in each bit, of the directions at the bits of the Gray code
    of its index.

    S. Joe, F. Y. Kuo, "Constructing Sobol sequences with better two-dimensional projections", SIAM
    Journal on Scientific Computing 30(5), 2008. J. Matoušek, "On the L2-discrepancy for anchored
    boxes", Journal of Complexity 14(4), 1998, has the scrambling.

    Example:
        >>> [round(each, 3) for each in sobol_point(2, 0, seed=0)]
        [0.41, 0.964]
    """
    # The engine of scipy draws from a child of its generator.
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
    weights = 2 ** np.arange(_BITS, dtype=np.uint32)
    shift = rng.integers(0, 2, (dimensions, _BITS), dtype=np.uint32) @ weights
    mixing = np.tril(rng.integers(0, 2, (dimensions, _BITS, _BITS), dtype=np.uint32))
    mixing[:, range(_BITS), range(_BITS)] = 1
    gray = index ^ (index >> 1)
    chosen = [bit for bit in range(_BITS) if gray >> bit & 1]
    # [dimensions, chosen, bits], the highest bit first.
    bits = _directions(dimensions)[:, chosen, None] >> np.arange(_BITS)[::-1] & 1
    mixed = np.einsum('dpk,dck->dcp', mixing, bits.astype(np.uint32)) & 1
    point = np.bitwise_xor.reduce(mixed, axis=1) @ weights[::-1] ^ shift
    found: list[float] = (point / 2**_BITS).tolist()
    return found


@functools.lru_cache(8)
def _directions(dimensions: int) -> Array:
    """Direction numbers of Joe and Kuo, as integers of `_BITS` bits: [dimensions, bits]."""
    spec = importlib.util.find_spec('scipy')  # Finds its files, and imports nothing.
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    with np.load(folder / 'stats' / '_sobol_direction_numbers.npz') as stored:
        polynomials, initial = stored['poly'][:dimensions], stored['vinit'][:dimensions]
    rows = [[1] * _BITS]
    for polynomial, first in zip(polynomials.tolist()[1:], initial.tolist()[1:], strict=True):
        rows.append(_row(polynomial, first))
    return np.array(rows[:dimensions], np.int64) << np.arange(_BITS)[::-1]


def _row(polynomial: int, first: list[int]) -> list[int]:
    """Continues the first direction numbers by the recurrence of a primitive polynomial."""
    degree = polynomial.bit_length() - 1
    row = first[:degree]
    for place in range(degree, _BITS):
        value = row[place - degree]
        for back in range(1, degree + 1):
            if polynomial >> (degree - back) & 1:
                value ^= row[place - back] << back
        row.append(value)
    return row
