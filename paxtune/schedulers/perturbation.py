"""Perturbs the numbers of decisions: multiplies, divides or resamples them."""

import random
from collections.abc import Collection, Sequence

import pyglove as pg

from paxtune.algorithms.encoding.sampling import draw_point
from paxtune.search_space.decisions import (
    DecisionPoint,
    Decisions,
    decide,
    decision_points,
    is_integer,
    slot_ids,
)
from paxtune.search_space.labels import parameter_path


def perturbed(
    spec: pg.DNASpec,
    parent: Decisions,
    rng: random.Random,
    factor: float,
    resample_probability: float,
    names: Collection[str] | None,
) -> Decisions:
    """Perturbs the numbers of decisions within their ranges, and keeps the choices.

    Args:
        factor: each number is multiplied or divided by this, at random. A whole number changes by
            at least one.
        resample_probability: the probability that a number is resampled instead, on its scale.
        names: ids or paths of the numbers; None for all.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1.0, 'log'), kind=pg.oneof('ab')))
        >>> perturbed(spec, {'rate': 0.1, 'kind': 1}, random.Random(1), 2.0, 0.0, None)
        {'rate': 0.05, 'kind': 1}
    """

    def choose(point: DecisionPoint) -> Sequence[int] | float:
        if not isinstance(point, pg.geno.Float):
            return [int(parent[id_]) for id_ in slot_ids(point)]
        number = parent[point.id.path]
        if names is not None and not names_of(point) & set(names):
            return number
        if rng.random() < resample_probability:
            return draw_point(point, rng)
        return _moved(point, number, factor if rng.random() < 0.5 else 1.0 / factor)

    return decide(spec, choose)


def numbers(spec: pg.DNASpec) -> list[pg.geno.Float]:
    """The decision points of a space that are numbers of a range."""
    return [point for point in decision_points(spec) if isinstance(point, pg.geno.Float)]


def names_of(point: pg.geno.Float) -> set[str]:
    """The names of a number: its id, and its path in the concrete experiment."""
    return {point.id.path, parameter_path(point.id.path)}


def _moved(point: pg.geno.Float, number: float, factor: float) -> int | float:
    low, high = point.min_value, point.max_value
    if not is_integer(point):
        return float(min(max(number * factor, low), high))
    moved = round(number * factor)
    if moved == number:
        moved = int(number) + (1 if factor > 1.0 else -1)
    return int(min(max(moved, low), high))
