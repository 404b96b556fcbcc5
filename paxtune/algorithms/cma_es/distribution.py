"""Search distribution of CMA-ES."""

import copy
import dataclasses
import json
import math
import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyglove as pg

from paxtune.algorithms.encoding.cache import per_spec
from paxtune.algorithms.encoding.scaling import to_unit
from paxtune.algorithms.encoding.unit_cube import Feature, FlatSpace
from paxtune.search_space.decisions import Decisions, is_integer

_MAX_INTEGERS = 64  # A range of more integers is continuous for the optimizer.
_NARROW = 1e-6  # Standard deviation, relative to the range, below which trials are equal.
_MAX_CACHED = 4


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Evaluated draw: its point, and its score; None if it is infeasible."""

    point: str
    score: float | None


_Generations: TypeAlias = tuple[tuple[Evaluation, ...], ...]


class _Layout:
    """Kinds of the columns of a row that can vary."""

    def __init__(self, spec: pg.DNASpec) -> None:
        self.space = FlatSpace(spec)
        # Columns of continuous ranges; of integers and of choices between numbers, with the unit
        # values of each; of other choices and of binary ones, with the number of candidates.
        self.numbers: list[int] = []
        self.ordinals: dict[int, list[float]] = {}
        self.categories: dict[int, int] = {}
        for column, feature in enumerate(self.space.features):
            units = _unit_values(feature, self.space.ranges.get(feature.id))
            if units is None:
                self.numbers.append(column)
            elif len(units) > 2 and feature.kind != 'category':
                self.ordinals[column] = units
            elif len(units) > 1:
                self.categories[column] = len(units)
        self.normal = [*self.numbers, *self.ordinals]
        self.size = len(self.normal) + len(self.categories)


def _unit_values(feature: Feature, point: pg.geno.Float | None) -> list[float] | None:
    """Unit values of a column; None if there are many."""
    if point is None:
        return [(rank + 0.5) / len(feature.order) for rank in range(len(feature.order))]
    if point.min_value == point.max_value:
        return [0.5]
    low, high = int(point.min_value), int(point.max_value)
    if not is_integer(point) or high - low >= _MAX_INTEGERS:
        return None
    return [to_unit(point, number) for number in range(low, high + 1)]


_layout = per_spec(_Layout)


@per_spec
def _cache(spec: pg.DNASpec) -> dict[Any, Any]:
    """Optimizers by the inputs that determine them: an entry saves time and changes no result."""
    return {}


class Distribution:
    """Normal distribution of numbers and ordinals, with probabilities of categories."""

    def __init__(
        self,
        spec: pg.DNASpec,
        population_size: int,
        step: float,
        start: Decisions | None,
        seed: str | None,
    ) -> None:
        """Creates the distribution of the first generation of a run.

        Its mean is at the decisions `start`, else at a point that `seed` draws, else in the middle.
        The standard deviation `step` is relative to each range.
        """
        self._spec = spec
        self._layout = _layout(spec)
        self._settings = (population_size, step, tuple((start or {}).items()), seed)
        self._start, self._seed = start, seed
        self._generations: _Generations = ()
        self._optimizer: Any = None

    @staticmethod
    def num_variables(spec: pg.DNASpec) -> int:
        """Number of decisions that can vary, conditional ones included."""
        return _layout(spec).size

    @staticmethod
    def default_population_size(spec: pg.DNASpec) -> int:
        """Default population size of the literature."""
        return 4 + math.floor(3 * math.log(_layout(spec).size))

    def tell(self, generations: Sequence[Sequence[Evaluation]]) -> None:
        """Adapts the first distribution to all evaluated generations."""
        self._generations = tuple(map(tuple, generations))
        cache = _cache(self._spec)
        key = (self._settings, self._generations)
        if key not in cache:
            previous = (self._settings, self._generations[:-1])
            if self._generations and previous in cache:
                optimizer, new = copy.deepcopy(cache[previous]), self._generations[-1:]
            else:
                optimizer, new = self._initial_optimizer(), self._generations
            for generation in new:
                self._adapt(optimizer, generation)
            if len(cache) >= _MAX_CACHED:
                cache.clear()
            cache[key] = optimizer
        self._optimizer = cache[key]

    def _initial_optimizer(self) -> Any:
        # Imported here: the import takes a second.
        from cmaes._catcmawm import CatCMAwM

        layout = self._layout
        population_size, step, _, _ = self._settings
        row = self._initial_mean()
        count = len(layout.normal)
        return CatCMAwM(
            x_space=[[0.0, 1.0]] * len(layout.numbers) or None,
            z_space=list(layout.ordinals.values()) or None,
            c_space=list(layout.categories.values()) or None,
            population_size=population_size,
            mean=row[layout.normal] if count else None,
            sigma=step,
            cov=np.eye(count) if count else None,
            cat_param=self._initial_probabilities(row),
        )

    def _initial_mean(self) -> np.ndarray:
        space = self._layout.space
        if self._start is not None:
            row = space.encode(self._start)
            return np.where(np.isnan(row), 0.5, row)
        if self._seed is None:
            return np.full(len(space), 0.5)
        rng = random.Random(self._seed)
        return np.array([rng.random() for _ in range(len(space))])

    def _initial_probabilities(self, row: np.ndarray) -> np.ndarray | None:
        counts = self._layout.categories
        if self._start is None or not counts:
            return None
        found = np.zeros((len(counts), max(counts.values())))
        for probabilities, (column, count) in zip(found, counts.items(), strict=True):
            probabilities[:count] = 0.5 / count
            probabilities[min(int(row[column] * count), count - 1)] += 0.5
        return found

    def _adapt(self, optimizer: Any, generation: Sequence[Evaluation]) -> None:
        # By rank, the best first and infeasible ones last. The update depends on ranks alone. With
        # equal scores the library would divide by zero.
        order = sorted(generation, key=lambda each: -math.inf if each.score is None else each.score)
        ranked = [(self._solution(each.point), float(i)) for i, each in enumerate(order[::-1])]
        with np.errstate(all='ignore'):
            optimizer.tell(ranked)

    def _solution(self, point: str) -> Any:
        from cmaes._catcmawm import CatCMAwM

        normal, chosen = json.loads(point)
        layout, one_hot = self._layout, None
        if layout.categories:
            one_hot = np.zeros((len(chosen), max(layout.categories.values())), bool)
            one_hot[np.arange(len(chosen)), chosen] = True
        return CatCMAwM.Solution(None, None, one_hot, np.array(normal) if layout.normal else None)

    def draw(self, seed: int) -> tuple[Decisions, str]:
        """Draws decisions, and the point that they stand for in an `Evaluation`."""
        row, point = self._sample(seed)
        return self._layout.space.decode(row), point

    def _sample(self, seed: int) -> tuple[np.ndarray, str]:
        if self._optimizer is None:
            self.tell([])
        self._optimizer.reseed_rng(seed)
        with np.errstate(all='ignore'):
            solution = self._optimizer.ask()
        layout = self._layout
        row = np.full(len(layout.space), 0.5)
        chosen: list[int] = []
        if layout.numbers:
            row[layout.numbers] = solution.x
        if layout.ordinals:
            row[list(layout.ordinals)] = solution.z
        if layout.categories:
            chosen = [int(index) for index in solution.c.argmax(axis=1)]
            counts = layout.categories.values()
            row[list(layout.categories)] = [
                (index + 0.5) / count for index, count in zip(chosen, counts, strict=True)
            ]
        normal = [] if solution._v_raw is None else solution._v_raw.tolist()
        return row, json.dumps([normal, chosen])

    @property
    def has_converged(self) -> bool:
        """True if further draws are not expected to improve."""
        if len({evaluation.score for evaluation in self._generations[-1]}) == 1:
            return True  # A plateau.
        normal = np.array([json.loads(evaluation.point)[0] for evaluation in self._generations[-1]])
        if not normal.size:
            return False
        with np.errstate(all='ignore'):
            return bool(
                (normal.std(axis=0) < _NARROW).all()
                or not np.isfinite(self._sample(0)[0]).all()
                or self._optimizer.should_stop()
            )
