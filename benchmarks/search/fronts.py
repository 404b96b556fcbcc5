"""Problems of two objectives, with the volumes that their best fronts dominate.

Nothing but NumPy is imported, as in `problems.py`. Seeds move the best decisions, since searches
begin in the middle of ranges, where DTLZ2 has its best ones. Infeasible trials have no values.
"""

import dataclasses
import functools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.search.problems import Instance, Parameter, Problem, Values, conditional


@dataclasses.dataclass(frozen=True)
class FrontProblem(Problem):
    """A problem of several objectives, all minimized.

    Attributes:
        reference: values that a trial has to be below to count.
        is_reported: False for a problem that constants are chosen on.
    """

    reference: tuple[float, ...] = ()
    is_reported: bool = True

    @property
    def num_objectives(self) -> int:
        """Number of values of a trial."""
        return len(self.reference)


def _instance(objective: Any, best: float) -> Instance:
    """An instance whose best front dominates this volume."""
    return Instance(lambda: objective, best, math.nan)


def area(points: np.ndarray, reference: Sequence[float]) -> float:
    """Area between a reference and the points [points, 2] that are below it.

    Example:
        >>> area(np.array([[0.0, 1.0], [1.0, 0.0], [3.0, 0.0]]), (2.0, 2.0))
        3.0
    """
    below = points[(points < np.array(reference)).all(axis=1)]
    below = below[np.argsort(below[:, 0], kind='stable')]
    floor = np.minimum.accumulate(np.append(reference[1], below[:, 1]))
    return float((reference[0] - below[:, 0]) @ -np.diff(floor))


def _numbers(count: int) -> tuple[Parameter, ...]:
    return tuple(Parameter(f'x{i}', 'number') for i in range(count))


def _centers(name: str, seed: int, count: int) -> np.ndarray:
    """Best values of numbers from 0 to 1."""
    rng = random.Random(f'{name}/{seed}')
    return np.array([rng.uniform(0.1, 0.9) for _ in range(count)])


def zdt_mixed(name: str, power: float, is_reported: bool) -> FrontProblem:
    """ZDT1 (power 0.5) and ZDT2 (power 2) with decisions of all kinds.

    Zitzler, Deb, Thiele, "Comparison of multiobjective evolutionary algorithms", 2000. `share`
    moves along the front; the others are best at one place.
    """
    activations, batches = ('relu', 'gelu', 'tanh', 'sigmoid'), (16, 32, 64, 128, 256, 512)
    parameters = (
        Parameter('share', 'number'),
        Parameter('rate', 'number', 1e-5, 1.0, log=True),
        Parameter('dropout', 'number', 0.0, 0.9),
        Parameter('depth', 'integer', 1, 12),
        Parameter('batch', 'ordered', values=batches),
        Parameter('activation', 'category', values=activations),
    )
    reference = (1.1, 2.1)
    shares = np.linspace(0.0, 1.0, 100_001)
    best_area = area(np.stack([shares, 1.0 - shares**power], axis=1), reference)

    @functools.cache
    def instance(seed: int) -> Instance:
        rng = random.Random(f'{name}/{seed}')
        best_rate, best_dropout = rng.uniform(0.1, 0.9), rng.uniform(0.1, 0.9)
        best_depth, best_batch = rng.randint(2, 11), rng.randrange(6)
        costs = dict(zip(rng.sample(activations, 4), (0.0, 0.1, 0.3, 0.8), strict=True))

        def objective(values: Values) -> tuple[float, float]:
            off = (
                (math.log10(float(values['rate'])) + 5) / 5 - best_rate,
                float(values['dropout']) / 0.9 - best_dropout,
                (float(values['depth']) - best_depth) / 11,
                (batches.index(int(values['batch'])) - best_batch) / 5,
                costs[str(values['activation'])],
            )
            g = 1.0 + 9.0 * sum(each**2 for each in off) / len(off)
            first = float(values['share'])
            return first, g * (1.0 - (first / g) ** power)

        return _instance(objective, best_area)

    return FrontProblem(name, parameters, instance, reference, is_reported)


def dtlz2(name: str, is_constrained: bool) -> FrontProblem:
    """DTLZ2 in six dimensions; C2-DTLZ2, in four, is feasible near three parts of the front alone.

    Deb, Thiele, Laumanns, Zitzler, "Scalable test problems", 2005. Jain, Deb 2014 (IEEE TEC 18),
    whose radius of 0.2 is 0.3 here: searches see that a trial is infeasible, but not how far.
    """
    reference, radius, count = (1.1, 1.1), 0.3, 4 if is_constrained else 6
    angles = np.linspace(0.0, math.pi / 2, 100_001)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def is_feasible(f: np.ndarray) -> np.ndarray:
        near_ends = (f - 1) ** 2 + f[..., ::-1] ** 2
        near_middle = np.sum((f - math.sqrt(0.5)) ** 2, axis=-1)
        return np.asarray(np.minimum(near_ends.min(axis=-1), near_middle) <= radius**2)

    best = circle[is_feasible(circle)] if is_constrained else circle
    best_area = area(best, reference)

    @functools.cache
    def instance(seed: int) -> Instance:
        centers = _centers(name, seed, count - 1)

        def objective(values: Values) -> tuple[float, float] | None:
            first, *others = (float(values[f'x{i}']) for i in range(count))
            length = 1.0 + float(np.sum((np.array(others) - centers) ** 2))
            angle = first * math.pi / 2
            found = length * np.array([math.cos(angle), math.sin(angle)])
            if is_constrained and not is_feasible(found):
                return None
            return float(found[0]), float(found[1])

        return _instance(objective, best_area)

    return FrontProblem(name, _numbers(count), instance, reference)


def branin_currin() -> FrontProblem:
    """Branin's and Currin's functions; the reference and the best area are those of BoTorch."""

    def objective(values: Values) -> tuple[float, float]:
        a, b = float(values['x0']), float(values['x1'])
        x, y = 15 * a - 5, 15 * b
        branin = (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2
        branin += 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10
        factor = 1.0 if b == 0.0 else 1.0 - math.exp(-1 / (2 * b))
        above = 2300 * a**3 + 1900 * a**2 + 2092 * a + 60
        return branin, factor * above / (100 * a**3 + 500 * a**2 + 4 * a + 20)

    made = _instance(objective, 59.36011874867746)
    return FrontProblem('branin_currin', _numbers(2), lambda seed: made, (18.0, 6.0))


_LARGEST = 2**20  # Layers × width², which no memory holds.


def loss_and_size() -> FrontProblem:
    """The loss of a model and its size, with choices that open further decisions.

    Forests are best where small, networks where large. The largest networks are infeasible.
    """
    parameters = tuple(
        dataclasses.replace(each, high=1024) if each.name == 'width' else each
        for each in conditional().parameters
        if each.name not in ('momentum', 'epsilon')
    )
    reference = (1.0, 7.0)

    def forest(size: np.ndarray, splits: np.ndarray, best: int) -> np.ndarray:
        return np.asarray(
            0.35 + 0.4 * np.exp(-(size - 1.3) / 0.8) + 0.02 * ((splits - best) / 3) ** 2
        )

    def net(size: np.ndarray, layers: np.ndarray, best: int) -> np.ndarray:
        return np.asarray(0.1 + 0.8 * np.exp(-(size - 1.8) / 1.5) + 0.02 * (layers - best) ** 2)

    @functools.cache
    def instance(seed: int) -> Instance:
        rng = random.Random(f'loss_and_size/{seed}')
        splits, layers = rng.randint(5, 18), rng.randint(2, 5)
        rates = {'sgd': rng.uniform(-2.0, 0.5), 'adam': rng.uniform(-4.0, -2.0)}
        penalty, costs = rng.uniform(-4.0, 0.0), {'sgd': 0.0, 'adam': 0.0}
        costs[rng.choice(('sgd', 'adam'))] = 0.1

        def objective(values: Values) -> tuple[float, float] | None:
            if values['model'] == 'linear':
                off = math.log10(float(values['penalty'])) - penalty
                return 0.9 + 0.01 * off**2, 1.0
            if values['model'] == 'forest':
                each = np.array([float(values['splits'])])
                size = np.log10(float(values['trees']) * each)
                return float(forest(size, each, splits)[0]), float(size[0])
            each = np.array([float(values['layers'])])
            weights = each * float(values['width']) ** 2
            if weights[0] > _LARGEST:
                return None
            name = str(values['optimizer'])
            off = math.log10(float(values[f'{name}_rate'])) - rates[name]
            loss = float(net(np.log10(weights), each, layers)[0])
            return loss + costs[name] + 0.3 * off**2, float(np.log10(weights[0]))

        trees, split = np.meshgrid(np.arange(10, 1001), np.arange(2, 21))
        size = np.log10(trees * split)
        width, layer = np.meshgrid(np.arange(8, 1025), np.arange(1, 7))
        weights = layer * width**2
        points = [
            np.array([[0.9, 1.0]]),
            np.stack([forest(size, split, splits), size], axis=-1).reshape(-1, 2),
            np.stack([net(np.log10(weights), layer, layers), np.log10(weights)], axis=-1)[
                weights <= _LARGEST
            ],
        ]
        return _instance(objective, area(np.concatenate(points), reference))

    return FrontProblem('loss_and_size', parameters, instance, reference)


def fonseca() -> FrontProblem:
    """Fonseca and Fleming's functions in three dimensions (VLMOP2), moved."""
    reference = (1.1, 1.1)
    steps = np.linspace(-1.0, 1.0, 100_001)
    front = np.stack([1 - np.exp(-((steps - 1) ** 2)), 1 - np.exp(-((steps + 1) ** 2))], axis=1)
    best_area = area(front, reference)

    @functools.cache
    def instance(seed: int) -> Instance:
        moved = 2 * _centers('fonseca', seed, 3) - 1

        def objective(values: Values) -> tuple[float, float]:
            at = 4 * np.array([float(values[f'x{i}']) for i in range(3)]) - 2 - moved
            first, second = (np.sum((at + s / math.sqrt(3)) ** 2) for s in (-1, 1))
            return 1 - math.exp(-first), 1 - math.exp(-second)

        return _instance(objective, best_area)

    return FrontProblem('fonseca', _numbers(3), instance, reference, is_reported=False)


def binh_korn() -> FrontProblem:
    """Binh and Korn's constrained functions (BNH)."""
    reference = (140.0, 50.0)

    def objective(values: Values) -> tuple[float, float] | None:
        x, y = 5 * float(values['x0']), 3 * float(values['x1'])
        if (x - 5) ** 2 + y**2 > 25 or (x - 8) ** 2 + (y + 3) ** 2 < 7.7:
            return None
        return 4 * x**2 + 4 * y**2, (x - 5) ** 2 + (y - 5) ** 2

    # The front: x = y up to 3, then y = 3.
    ends = np.linspace(0.0, 5.0, 100_001)
    x, y = ends, np.minimum(ends, 3.0)
    front = np.stack([4 * x**2 + 4 * y**2, (x - 5) ** 2 + (y - 5) ** 2], axis=1)
    made = _instance(objective, area(front, reference))
    return FrontProblem('binh_korn', _numbers(2), lambda seed: made, reference, is_reported=False)


def front_problems() -> Mapping[str, FrontProblem]:
    """All problems by name."""
    made = (
        zdt_mixed('zdt1_mixed', 0.5, is_reported=True),
        dtlz2('dtlz2', is_constrained=False),
        branin_currin(),
        dtlz2('c2_dtlz2', is_constrained=True),
        loss_and_size(),
        zdt_mixed('zdt2_mixed', 2.0, is_reported=False),
        fonseca(),
        binh_korn(),
    )
    return {each.name: each for each in made}
