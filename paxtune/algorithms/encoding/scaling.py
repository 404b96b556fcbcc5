"""Numbers of a range as shares of it, on its scale."""

import math

import pyglove as pg

from paxtune.search_space.decisions import is_integer


def from_share(point: pg.geno.Float, share: float) -> int | float:
    """The number at a share of a range.

    Of whole numbers, each has the share of the scale from i - ½ to i + ½: on a logarithmic one
    log((i + ½) / (i - ½)), also at the bounds.

    Args:
        point: the range.
        share: from 0 to 1.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1.0, 'log')))
        >>> round(from_share(spec.elements[0], 0.5), 6)
        0.01
    """
    low, high, margin = _bounds(point)
    if point.scale in ('log', 'rlog'):
        ends = math.log(low - margin), math.log(high + margin)
        number = math.exp((1 - share) * ends[0] + share * ends[1])
    else:
        number = (1 - share) * (low - margin) + share * (high + margin)
    if is_integer(point):
        whole = min(max(round(number), int(low)), int(high))
        return int(low) + int(high) - whole if point.scale == 'rlog' else whole
    if point.scale == 'rlog':
        number = low + high - number
    return float(min(max(number, low), high))


def to_share(point: pg.geno.Float, number: float) -> float:
    """The share of a range at which a number stands; of a whole number, about its middle.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1.0, 'log')))
        >>> to_share(spec.elements[0], 0.01)
        0.5
    """
    low, high, margin = _bounds(point)
    if point.scale == 'rlog':
        number = low + high - number
    if point.scale in ('log', 'rlog'):
        low, high, number = math.log(low - margin), math.log(high + margin), math.log(number)
    else:
        low, high = low - margin, high + margin
    return min(max((number - low) / (high - low), 0.0), 1.0)


def _bounds(point: pg.geno.Float) -> tuple[float, float, float]:
    """The ends of a range, and how far beyond them the share of the last whole number goes."""
    return point.min_value, point.max_value, 0.5 if is_integer(point) else 0.0
