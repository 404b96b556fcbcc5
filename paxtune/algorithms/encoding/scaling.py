import math
import sys
from collections.abc import Callable

import pyglove as pg

from paxtune.search_space.decisions import is_integer

_MAX_EXPONENT = math.log(sys.float_info.max)


def from_unit(point: pg.geno.Float, unit: float) -> int | float:
    """Converts a unit value, from 0 to 1, to the number of a range.

    Integer i covers the scale from i - ½ to i + ½, also at the bounds. On a logarithmic scale that
    is log((i + ½) / (i - ½)).

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1.0, 'log')))
        >>> round(from_unit(spec.elements[0], 0.5), 6)
        0.01
    """
    low, high, margin = _bounds(point)
    if point.scale in ('log', 'rlog'):
        ends = math.log(low - margin), math.log(high + margin)
        exponent = (1 - unit) * ends[0] + unit * ends[1]
        # Rounded, it may be above the logarithm of the largest float.
        number = math.exp(exponent) if exponent <= _MAX_EXPONENT else high
    else:
        number = (1 - unit) * (low - margin) + unit * (high + margin)
    if is_integer(point):
        whole = min(max(round(number), int(low)), int(high))
        return int(low) + int(high) - whole if point.scale == 'rlog' else whole
    if point.scale == 'rlog':
        number = low + high - number
    return float(min(max(number, low), high))


def to_unit(point: pg.geno.Float, number: float) -> float:
    """Converts a number of a range to its unit value, for an integer inside its interval.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1.0, 'log')))
        >>> to_unit(spec.elements[0], 0.01)
        0.5
    """
    return to_unit_function(point)(number)


def to_unit_function(point: pg.geno.Float) -> Callable[[float], float]:
    """Makes `to_unit` of one range, which reads the slow attributes of PyGlove once."""
    low, high, margin = _bounds(point)
    is_reversed, is_log = point.scale == 'rlog', point.scale in ('log', 'rlog')
    start, end = low - margin, high + margin
    if is_log:
        start, end = math.log(start), math.log(end)

    def convert(number: float) -> float:
        if is_reversed:
            number = max(low, low + high - number)  # Rounded, it may be 0.
        if start == end:
            return 0.5  # A constant.
        at = math.log(number) if is_log else number
        return min(max((at - start) / (end - start), 0.0), 1.0)

    return convert


def _bounds(point: pg.geno.Float) -> tuple[float, float, float]:
    """Bounds of a range, and the margin that integers cover beyond them."""
    return point.min_value, point.max_value, 0.5 if is_integer(point) else 0.0
