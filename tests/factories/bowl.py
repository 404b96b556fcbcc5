"""A function that an algorithm should maximize faster than random search."""

import math
from collections.abc import Callable

import pyglove as pg

from paxtune.algorithms import Algorithm
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import searched
from trainer.symbolic.ranges import intv


def bowl_spec() -> pg.DNASpec:
    """Numbers on several scales, and a choice."""
    numbers = {f'x{i}': pg.floatv(-1.0, 1.0) for i in range(3)}
    return pg.dna_spec(
        pg.Dict(
            numbers,
            rate=pg.floatv(1e-6, 1.0, 'log'),
            width=intv(1, 1024, 'log'),
            kind=pg.oneof(list('abcd')),
        )
    )


def bowl(decisions: Decisions) -> float:
    """At most 0."""
    squares = [(decisions[f'x{i}'] - 0.3 * i) ** 2 for i in range(3)]
    squares.append((math.log10(decisions['rate']) / 3 + 4 / 3) ** 2)
    squares.append((math.log2(decisions['width']) / 5 - 6 / 5) ** 2)
    return -sum(squares) - 0.3 * (decisions['kind'] != 2)


def best_of(
    algorithm: Algorithm,
    spec: pg.DNASpec,
    score: Callable[[Decisions], float],
    count: int,
    seed: int,
) -> float:
    """The best score of `count` trials."""
    return max(trial.scores[0] for trial in searched(algorithm, spec, score, count, seed))
