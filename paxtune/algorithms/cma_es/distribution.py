"""A distribution over a search space that adapts to what is told: the mathematics of CMA-ES."""

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
from paxtune.algorithms.encoding.scaling import to_share
from paxtune.algorithms.encoding.unit_cube import Feature, FlatSpace
from paxtune.search_space.decisions import Decisions, is_integer, points

_MOST_STEPS = 64  # A range of more integers is searched as one of floats.
_NARROW = 1e-6  # Of each range: nobody can tell trials apart that are as close.
_MOST_KEPT = 4


@dataclasses.dataclass(frozen=True)
class Told:
    """How a draw turned out: the point, and the score, None where it is infeasible."""

    point: str
    score: float | None


_Told: TypeAlias = tuple[tuple[Told, ...], ...]


class _Layout:
    """Which column of the box is what, of those that can vary.

    Attributes:
        space: the box.
        numbers: the columns of ranges.
        ordinals: those of whole numbers and of choices between numbers, with the shares of all
            their values.
        categories: those of other choices, and of those between two, with the number of candidates.
    """

    def __init__(self, spec: pg.DNASpec) -> None:
        self.space = FlatSpace(spec)
        ranges = {each.id.path: each for each in points(spec) if isinstance(each, pg.geno.Float)}
        self.numbers: list[int] = []
        self.ordinals: dict[int, list[float]] = {}
        self.categories: dict[int, int] = {}
        for column, feature in enumerate(self.space.features):
            shares = _shares(feature, ranges.get(feature.id))
            if shares is None:
                self.numbers.append(column)
            elif len(shares) > 2 and feature.kind != 'category':
                self.ordinals[column] = shares
            elif len(shares) > 1:
                self.categories[column] = len(shares)
        self.normal = [*self.numbers, *self.ordinals]
        self.size = len(self.normal) + len(self.categories)


def _shares(feature: Feature, point: pg.geno.Float | None) -> list[float] | None:
    """Where the values of a column stand; None where they are many."""
    if point is None:
        return [(rank + 0.5) / len(feature.order) for rank in range(len(feature.order))]
    if point.min_value == point.max_value:
        return [0.5]
    low, high = int(point.min_value), int(point.max_value)
    if not is_integer(point) or high - low >= _MOST_STEPS:
        return None
    return [to_share(point, number) for number in range(low, high + 1)]


_layout = per_spec(_Layout)


@per_spec
def _kept(spec: pg.DNASpec) -> dict[Any, Any]:
    """Optimizers by all that they were made of: nothing depends on whether one is here."""
    return {}


class Adapting:
    """A normal distribution for numbers and ordinals, probabilities for categories."""

    def __init__(
        self,
        spec: pg.DNASpec,
        population_size: int,
        step: float,
        start: Decisions | None,
        seed: str | None,
    ) -> None:
        """Makes the distribution of a run's first generation.

        Args:
            spec: the space.
            population_size: how many draws are told at once.
            step: the standard deviation, as a share of each range.
            start: decisions around which it lies.
            seed: draws where it lies where there is no `start`; None for the middle.
        """
        self._spec = spec
        self._layout = _layout(spec)
        self._made_of = (population_size, step, tuple((start or {}).items()), seed)
        self._start, self._seed = start, seed
        self._told: _Told = ()
        self._optimizer: Any = None

    @staticmethod
    def num_columns(spec: pg.DNASpec) -> int:
        """How many decisions vary, those that only some decisions open included."""
        return _layout(spec).size

    @staticmethod
    def usual_size(spec: pg.DNASpec) -> int:
        """The population of which the literature says that it mostly suffices."""
        return 4 + math.floor(3 * math.log(_layout(spec).size))

    def tell(self, generations: Sequence[Sequence[Told]]) -> None:
        """Adapts the first generation's distribution to what became of all generations."""
        self._told = tuple(map(tuple, generations))
        kept = _kept(self._spec)
        key = (self._made_of, self._told)
        if key not in kept:
            before = kept.get((self._made_of, self._told[:-1])) if self._told else None
            optimizer = copy.deepcopy(before) if before is not None else self._first()
            for told in self._told[-1:] if before is not None else self._told:
                self._adapt(optimizer, told)
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            kept[key] = optimizer
        self._optimizer = kept[key]

    def _first(self) -> Any:
        from cmaes._catcmawm import (
            CatCMAwM,
        )  # Imported here: it imports scipy.stats, which takes a second.

        layout = self._layout
        population_size, step, _, _ = self._made_of
        row = self._first_row()
        count = len(layout.normal)
        return CatCMAwM(
            x_space=[[0.0, 1.0]] * len(layout.numbers) or None,
            z_space=list(layout.ordinals.values()) or None,
            c_space=list(layout.categories.values()) or None,
            population_size=population_size,
            mean=row[layout.normal] if count else None,
            sigma=step,
            cov=np.eye(count) if count else None,
            cat_param=self._first_probabilities(row),
        )

    def _first_row(self) -> np.ndarray:
        space = self._layout.space
        if self._start is not None:
            row = space.encode(self._start)
            return np.where(np.isnan(row), 0.5, row)
        if self._seed is None:
            return np.full(len(space), 0.5)
        rng = random.Random(self._seed)
        return np.array([rng.random() for _ in range(len(space))])

    def _first_probabilities(self, row: np.ndarray) -> np.ndarray | None:
        counts = self._layout.categories
        if self._start is None or not counts:
            return None
        found = np.zeros((len(counts), max(counts.values())))
        for chances, (column, count) in zip(found, counts.items(), strict=True):
            chances[:count] = 0.5 / count
            chances[min(int(row[column] * count), count - 1)] += 0.5
        return found

    def _adapt(self, optimizer: Any, told: Sequence[Told]) -> None:
        # By rank: the best first, what is infeasible last. Nothing that is done depends on more,
        # and equal scores would make the library divide by zero.
        order = sorted(told, key=lambda each: -math.inf if each.score is None else each.score)
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
        """Draws decisions, and the point of the box that they were made of, which is told later."""
        row, point = self._ask(seed)
        return self._layout.space.decode(row), point

    def _ask(self, seed: int) -> tuple[np.ndarray, str]:
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
        """Whether nothing better is to be expected of further draws."""
        if len({told.score for told in self._told[-1]}) == 1:
            return True  # A plateau.
        normal = np.array([json.loads(told.point)[0] for told in self._told[-1]])
        if not normal.size:
            return False
        with np.errstate(all='ignore'):
            return bool(
                (normal.std(axis=0) < _NARROW).all()
                or not np.isfinite(self._ask(0)[0]).all()
                or self._optimizer.should_stop()
            )
