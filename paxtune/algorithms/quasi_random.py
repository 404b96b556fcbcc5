import random
from collections.abc import Callable, Mapping, Sequence

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.cache import per_spec
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.encoding.scaling import from_unit
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.sobol import sobol_point
from paxtune.search_space.decisions import DecisionPoint, Decisions, decide, slot_ids

_MAX_SEQUENCES = 20


class QuasiRandom(Algorithm):
    """Trial n is point n of a scrambled Sobol sequence.

    Each decision has its own dimension, conditional ones included. Numbers are spread on their
    scale, candidates are equally frequent. If the point was tried or is infeasible, point n of
    other sequences follows, then a random one.

    A. B. Owen, "Scrambling Sobol' and Niederreiter-Xing points", Journal of Complexity 14(4), 1998.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a', 'b'])))
        >>> algorithm, found = QuasiRandom(), []
        >>> for number in (1, 2):
        ...     found += algorithm.suggest(
        ...         SuggestionContext(spec, 0, number, list)
        ...     ).decisions.values()
        >>> sorted(found)
        [0, 1]
    """

    def suggest(self, context: SuggestionContext) -> Suggestion:
        return Suggestion(draw_quasi_random(context))


def draw_quasi_random(
    context: SuggestionContext,
    is_new: Callable[[Decisions], bool] = lambda decisions: True,
    quantile: Callable[[float], float] = float,
    known: Mapping[str, Callable[[float], float]] | None = None,
) -> Decisions:
    """Draws eligible decisions that are evenly spread together with other trial numbers.

    Args:
        is_new: further condition on decisions of a sequence.
        quantile: inverse distribution function of numbers in the unit interval; uniform by default.
        known: the same of decisions that have another one, by their ids. Unit values of choices are
            those of `FlatSpace`.

    Raises:
        Exhausted: none exist.
        UserError: none were found, although some may exist.
    """
    columns = _columns(context.spec)
    for sequence in range(_MAX_SEQUENCES if columns else 0):
        seed = random.Random(f'{context.seed}/sobol/{sequence}').getrandbits(64)
        row = sobol_point(len(columns), context.number - 1, seed)
        decisions = _decode(context.spec, columns, row, quantile, known or {})
        if is_new(decisions) and context.is_eligible(decisions):
            return decisions
    return draw_eligible(context, context.rng())


@per_spec
def _columns(spec: pg.DNASpec) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Column of each decision, and the order of its candidates."""
    features = FlatSpace(spec).features
    return {feature.id: (column, feature.order) for column, feature in enumerate(features)}


def _decode(
    spec: pg.DNASpec,
    columns: Mapping[str, tuple[int, tuple[int, ...]]],
    row: Sequence[float],
    quantile: Callable[[float], float],
    known: Mapping[str, Callable[[float], float]],
) -> Decisions:
    """Decodes a row, so that candidates are equally frequent and numbers have their distribution.

    It differs from `FlatSpace.decode` for distinct candidates: the choice among the free ones does
    not depend on their neighbours.
    """

    def choose(point: DecisionPoint) -> Sequence[int] | float:
        if isinstance(point, pg.geno.Float):
            id_ = point.id.path
            return from_unit(point, known.get(id_, quantile)(row[columns[id_][0]]))
        chosen: list[int] = []
        for id_ in slot_ids(point):
            column, order = columns[id_]
            if id_ in known:
                cell = int(known[id_](row[column]) * len(order))
                preferred = order[min(cell, len(order) - 1)]
                if not (point.distinct and preferred in chosen):
                    chosen.append(preferred)
                    continue
            free = [each for each in order if not (point.distinct and each in chosen)]
            chosen.append(free[min(int(row[column] * len(free)), len(free) - 1)])
        return sorted(chosen) if point.sorted else chosen

    return decide(spec, choose)
