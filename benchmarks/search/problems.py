"""Problems of searches: parameters, and objectives of their values.

Nothing but NumPy is imported, since the peers' environment lacks paxtune. A problem has
instances by seed: a run with seed n, of whatever method, searches instance n.
"""

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from benchmarks.search import bbob

Value: TypeAlias = int | float | str
Values: TypeAlias = Mapping[str, Value]
Objective: TypeAlias = Callable[[Values], float | None]
"""The value of a trial, the less the better; None where it is infeasible."""

_DRAWS = 10_000


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One of the decisions.

    Attributes:
        name: no other parameter of the problem has it.
        kind: 'number' and 'integer' for ranges; 'ordered' for a few numbers; 'category'.
        low: the first number of a range.
        high: the last number of a range.
        log: whether the range is on a logarithmic scale.
        values: of an ordered parameter, ascending, or of a category.
        condition: the name and the value of the category that opens it; None where it always is.
    """

    name: str
    kind: Literal['number', 'integer', 'ordered', 'category']
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    values: tuple[Value, ...] = ()
    condition: tuple[str, str] | None = None

    def drawn(self, rng: random.Random) -> Value:
        """A value at random, uniform on the scale."""
        if self.values:
            return rng.choice(self.values)
        margin = 0.5 if self.kind == 'integer' else 0.0
        low, high = self.low - margin, self.high + margin
        if self.log:
            number = math.exp(rng.uniform(math.log(low), math.log(high)))
        else:
            number = rng.uniform(low, high)
        number = min(max(number, self.low), self.high)
        return round(number) if self.kind == 'integer' else number


def opened(parameters: Sequence[Parameter], values: dict[str, Value]) -> Iterator[Parameter]:
    """The parameters that have a value, one after the other.

    Args:
        parameters: owners before what they open.
        values: where the caller puts the value of each before it asks for the next.
    """
    for each in parameters:
        if each.condition is None or values.get(each.condition[0]) == each.condition[1]:
            yield each


@dataclasses.dataclass(frozen=True)
class Instance:
    """Problem of one run.

    Attributes:
        start: begins a run: gives its objective, which may remember what was asked.
        best: the smallest value that there is.
        median: of the values of random draws, of those that are feasible.
        optimum: the values with the smallest objective, where they are known.
    """

    start: Callable[[], Objective]
    best: float
    median: float
    optimum: Values | None = None


@dataclasses.dataclass(frozen=True)
class Known:
    """The usual value of a number.

    Attributes:
        value: usual.
        low: the first number of the interval in which two thirds of good values lie.
        high: the last number of the interval.
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Problem:
    """Parameters and their instances.

    Attributes:
        name: for people, and for what is kept on disk.
        parameters: owners before what they open.
        instance: the instance of a seed.
        known: usual values of some parameters, by name. One outside of its range means the nearer
            end.
    """

    name: str
    parameters: tuple[Parameter, ...]
    instance: Callable[[int], Instance]
    known: Mapping[str, Known] = dataclasses.field(default_factory=dict, kw_only=True)

    @property
    def is_conditional(self) -> bool:
        """True if some parameters are opened by others."""
        return any(each.condition for each in self.parameters)

    def knowing(self, prior: Literal['none', 'known', 'mirrored']) -> 'Problem':
        """The problem with its known values, without any, or with wrong ones.

        Mirrored values lie on the other side of the middle of each range.
        """
        if prior == 'known':
            return self
        ranges = {each.name: each for each in self.parameters}
        mirrored = {name: _mirrored(ranges[name], each) for name, each in self.known.items()}
        return dataclasses.replace(self, known=mirrored if prior == 'mirrored' else {})


def _mirrored(range_: Parameter, known: Known) -> Known:
    def mirror(number: float) -> float:
        number = min(max(number, range_.low), range_.high)
        if range_.log:
            return range_.low * (range_.high / number)
        return range_.low + range_.high - number

    return Known(mirror(known.value), mirror(known.high), mirror(known.low))


def drawn(parameters: Sequence[Parameter], rng: random.Random) -> dict[str, Value]:
    """Values at random."""
    values: dict[str, Value] = {}
    for each in opened(parameters, values):
        values[each.name] = each.drawn(rng)
    return values


def _median(parameters: Sequence[Parameter], objective: Objective, seed: int) -> float:
    rng = random.Random(seed)
    found = (objective(drawn(parameters, rng)) for _ in range(_DRAWS))
    return float(np.median([value for value in found if value is not None]))


def bbob_problem(name: str, dimension: int) -> Problem:
    """One of the functions of BBOB; each seed shifts and rotates it in its own way."""
    names = [f'x{i}' for i in range(dimension)]
    parameters = tuple(Parameter(each, 'number', -bbob.BOUND, bbob.BOUND) for each in names)

    @functools.cache
    def instance(seed: int) -> Instance:
        function = bbob.function(name, dimension, seed)

        def objective(values: Values) -> float:
            return float(function.of(np.array([[values[each] for each in names]], float))[0])

        shape = (_DRAWS, dimension)
        points = np.random.default_rng(seed).uniform(-bbob.BOUND, bbob.BOUND, shape)
        median = float(np.median(function.of(points)))
        optimum = dict(zip(names, map(float, function.optimum), strict=True))
        return Instance(lambda: objective, 0.0, median, optimum)

    return Problem(f'{name}_{dimension}', parameters, instance)


def mixed() -> Problem:
    """Ranges, a range of whole numbers, ordered numbers and categories; made to look like training.

    All terms are 0 at once at one point, so the smallest value is 0. The best rate depends on the
    optimizer and on the width, and there are ripples around it.
    """
    activations, optimizers = ('relu', 'gelu', 'tanh', 'sigmoid'), ('sgd', 'adam', 'lion')
    parameters = (
        Parameter('rate', 'number', 1e-5, 1.0, log=True),
        Parameter('dropout', 'number', 0.0, 0.9),
        Parameter('width', 'integer', 8, 1024, log=True),
        Parameter('depth', 'integer', 1, 12),
        Parameter('batch', 'ordered', values=(16, 32, 64, 128, 256, 512)),
        Parameter('activation', 'category', values=activations),
        Parameter('optimizer', 'category', values=optimizers),
    )

    @functools.cache
    def instance(seed: int) -> Instance:
        rng = random.Random(f'mixed/{seed}')
        best_rate, best_dropout = rng.uniform(-4.0, -1.0), rng.uniform(0.1, 0.6)
        best_width, best_depth = round(2 ** rng.uniform(4.0, 9.0)), rng.randint(2, 10)
        best_batch = rng.choice((32, 64, 128, 256))
        costs = dict(zip(rng.sample(activations, 4), (0.0, 0.1, 0.3, 0.8), strict=True))
        order = rng.sample(optimizers, 3)
        costs |= dict(zip(order, (0.0, 0.2, 0.5), strict=True))
        lower = dict(zip(order, (0.0, 1.0, -0.7), strict=True))

        def objective(values: Values) -> float:
            log = {
                name: math.log2(float(values[name]) / best)
                for name, best in (('width', best_width), ('batch', best_batch))
            }
            expected = best_rate - lower[str(values['optimizer'])] - 0.15 * log['width']
            off = math.log10(float(values['rate'])) - expected
            return (
                costs[str(values['activation'])]
                + costs[str(values['optimizer'])]
                + off**2
                + 0.2 * (1 - math.cos(2 * math.pi * off))
                + 4 * (float(values['dropout']) - best_dropout) ** 2
                + 0.1 * log['width'] ** 2
                + 0.05 * log['batch'] ** 2
                + 0.03 * (float(values['depth']) - best_depth) ** 2
            )

        optimum: dict[str, Value] = {
            'rate': 10**best_rate,
            'dropout': best_dropout,
            'width': best_width,
            'depth': best_depth,
            'batch': best_batch,
            'activation': next(name for name in activations if not costs[name]),
            'optimizer': order[0],
        }
        median = _median(parameters, objective, seed)
        return Instance(lambda: objective, 0.0, median, optimum)

    return Problem('mixed', parameters, instance)


_LARGEST = 2**22  # Layers × width², which no memory holds.


def conditional() -> Problem:
    """Choices that open further decisions.

    A network is the best model, but only where its parts are right: most networks are worse than
    most forests. The largest do not fit into memory, so that they are infeasible. All terms of
    a network are 0 at once at one point, which is feasible: the smallest value is 0.
    """
    network, sgd, adam = ('model', 'network'), ('optimizer', 'sgd'), ('optimizer', 'adam')
    parameters = (
        Parameter('model', 'category', values=('linear', 'forest', 'network')),
        Parameter('penalty', 'number', 1e-6, 1e2, log=True, condition=('model', 'linear')),
        Parameter('trees', 'integer', 10, 1000, log=True, condition=('model', 'forest')),
        Parameter('splits', 'integer', 2, 20, condition=('model', 'forest')),
        Parameter('layers', 'integer', 1, 6, condition=network),
        Parameter('width', 'integer', 8, 2048, log=True, condition=network),
        Parameter('optimizer', 'category', values=('sgd', 'adam'), condition=network),
        Parameter('sgd_rate', 'number', 1e-4, 10.0, log=True, condition=sgd),
        Parameter('momentum', 'number', 0.0, 1.0, condition=sgd),
        Parameter('adam_rate', 'number', 1e-6, 1e-1, log=True, condition=adam),
        Parameter('epsilon', 'number', 1e-10, 1e-2, log=True, condition=adam),
    )

    @functools.cache
    def instance(seed: int) -> Instance:
        rng = random.Random(f'conditional/{seed}')
        best = {
            'penalty': 10 ** rng.uniform(-4.0, 0.0),
            'trees': 10 ** rng.uniform(1.5, 2.9),
            'splits': rng.randint(5, 18),
            'layers': rng.randint(2, 5),
            'width': round(2 ** rng.uniform(5.0, 9.0)),
            'sgd_rate': 10 ** rng.uniform(-2.0, 0.5),
            'momentum': rng.uniform(0.5, 0.95),
            'adam_rate': 10 ** rng.uniform(-4.0, -2.0),
            'epsilon': 10 ** rng.uniform(-8.0, -4.0),
        }
        costs = dict(zip(rng.sample(('sgd', 'adam'), 2), (0.0, 0.15), strict=True))

        def objective(values: Values) -> float | None:
            off = {
                each.name: float(values[each.name]) - best[each.name]
                if not each.log
                else math.log10(float(values[each.name]) / best[each.name])
                for each in parameters
                if each.name in values and each.name in best
            }
            if values['model'] == 'linear':
                return 1.0 + 0.05 * off['penalty'] ** 2
            if values['model'] == 'forest':
                return 0.4 + 0.3 * off['trees'] ** 2 + 0.01 * off['splits'] ** 2
            if float(values['layers']) * float(values['width']) ** 2 > _LARGEST:
                return None
            cost = 0.1 * off['layers'] ** 2 + 0.6 * off['width'] ** 2
            if values['optimizer'] == 'sgd':
                cost += 0.7 * off['sgd_rate'] ** 2 + 2 * off['momentum'] ** 2
            else:
                cost += 0.7 * off['adam_rate'] ** 2 + 0.02 * off['epsilon'] ** 2
            return cost + costs[str(values['optimizer'])]

        chosen: dict[str, Value] = {
            'model': 'network',
            'optimizer': next(name for name, cost in costs.items() if not cost),
        }
        optimum: dict[str, Value] = {}
        for each in opened(parameters, optimum):
            optimum[each.name] = chosen[each.name] if each.values else best[each.name]
        median = _median(parameters, objective, seed)
        return Instance(lambda: objective, 0.0, median, optimum)

    return Problem('conditional', parameters, instance)


def problems(data_dir: Path) -> dict[str, Problem]:
    """All problems by name; of the tables, those that are there."""
    from benchmarks.search import tables

    made = [bbob_problem(name, dimension) for dimension in (4, 20) for name in bbob.NAMES]
    made += [mixed(), conditional(), *tables.problems(data_dir)]
    return {each.name: each for each in made}
