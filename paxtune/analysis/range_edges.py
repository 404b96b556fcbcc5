from collections.abc import Iterator

import pyglove as pg

from paxtune.algorithms.encoding.scaling import to_unit
from paxtune.search_space import decisions as search_space
from paxtune.search_space.decisions import DecisionPoint, Decisions
from paxtune.search_space.labels import parameter_path

_EDGE = 0.01  # Share of the range of a float, on its scale.
_MIN_NUMBERS = 3  # With fewer, nearly every number is at an edge.


def at_edges(spec: pg.DNASpec, decisions: Decisions) -> dict[str, tuple[int | float, int | float]]:
    """Finds decisions at the edge of their range: {path: (lowest, highest)}.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.oneof([1, 2, 4])))
        >>> at_edges(spec, {'x': 0.999, 'y': 1})
        {'x': (0.0, 1.0)}
    """
    return {
        parameter_path(id_): (low, high)
        for point in search_space.active_decision_points(spec, decisions)
        for id_, low, high in _edges(point, decisions)
    }


def _edges(
    point: DecisionPoint, decisions: Decisions
) -> Iterator[tuple[str, int | float, int | float]]:
    if isinstance(point, pg.geno.Float):
        if _is_at_edge(point, decisions[point.id.path]):
            kind = int if search_space.is_integer(point) else float
            yield point.id.path, kind(point.min_value), kind(point.max_value)
        return
    for slot in search_space.slots(point):
        numbers = search_space.numeric_candidates(slot)
        if len(numbers) < _MIN_NUMBERS or (point.num_choices > 1 and point.distinct):
            continue
        chosen = numbers[int(decisions[slot.id.path])]
        if chosen in (min(numbers), max(numbers)):
            literals = sorted(slot.literal_values)
            yield slot.id.path, literals[0], literals[-1]


def _is_at_edge(point: pg.geno.Float, number: int | float) -> bool:
    low, high = point.min_value, point.max_value
    if search_space.is_integer(point):
        return number in (low, high) and high - low + 1 >= _MIN_NUMBERS
    return low < high and not _EDGE < to_unit(point, number) < 1 - _EDGE
