"""Scaling laws: fits recover known constants, and refuse data without them."""

import math

import numpy as np
import pytest

from paxtune.scale.figures import law_figure
from paxtune.scale.laws import Point, fit_best, fit_loss, vertex
from trainer.symbolic.errors import UserError

KNOWN = {'E': 1.7, 'A': 400.0, 'B': 410.0, 'alpha': 0.34, 'beta': 0.28}
SIZES = [(n, d) for n in (1e6, 4e6, 2e7, 1e8) for d in (2e7, 1e8, 1e9, 5e9)]


def loss(n: float, d: float) -> float:
    return KNOWN['E'] + KNOWN['A'] / n ** KNOWN['alpha'] + KNOWN['B'] / d ** KNOWN['beta']


def test_a_known_law_is_recovered_without_noise() -> None:
    law = fit_loss([Point(n, d, loss(n, d)) for n, d in SIZES], num_bootstrap=3)
    assert {name: law.values[name] for name in KNOWN} == pytest.approx(KNOWN, rel=1e-2)
    assert law.values['optimal_params_exponent'] == pytest.approx(0.28 / 0.62, rel=1e-2)
    assert law.loss(1e9, 1e10) == pytest.approx(loss(1e9, 1e10), rel=1e-3)
    assert law.error < 1e-4


def test_intervals_of_a_noisy_law_contain_its_constants() -> None:
    rng = np.random.default_rng(0)
    noise = np.exp(rng.normal(0, 0.003, len(SIZES)))
    points = [Point(n, d, loss(n, d) * each) for (n, d), each in zip(SIZES, noise, strict=True)]
    law = fit_loss(points, num_bootstrap=50)
    for name in ('E', 'alpha', 'beta'):
        low, high = law.intervals[name]
        assert low < KNOWN[name] < high and high - low < 0.5 * KNOWN[name]
    assert fit_loss(points, num_bootstrap=50) == law


def test_an_outlier_hardly_moves_the_fit() -> None:
    points = [Point(n, d, loss(n, d)) for n, d in SIZES]
    points[5] = Point(*SIZES[5], 2 * loss(*SIZES[5]))
    assert fit_loss(points, 0).values['alpha'] == pytest.approx(KNOWN['alpha'], rel=0.1)


def test_runs_that_diverged_or_lost_do_not_count() -> None:
    points = [Point(n, d, loss(n, d)) for n, d in SIZES]
    worse = [Point(1e6, 1e8, math.nan), Point(1e6, 1e8, 9.0)]
    assert fit_loss([*points, *worse], 0) == fit_loss(points, 0)


def test_the_best_learning_rate_is_a_power_of_compute() -> None:
    points = [
        Point(n, d, loss(n, d) * (1 + 0.01 * (k + 0.3) ** 2), (6 * n * d) ** -0.25 * 2**k)
        for n, d in SIZES
        for k in (-2, -1, 0, 1)
    ]
    law = fit_best(points, 'learning_rate')
    assert law is not None and law.exponent == pytest.approx(-0.25, abs=1e-6)
    assert law.exponent_interval == pytest.approx((-0.25, -0.25), abs=1e-6)
    assert law.at(1e18) == pytest.approx(2**-0.3 * 1e18**-0.25, rel=1e-6)
    assert fit_best(points, 'batch_size') is None


def test_the_vertex_lies_between_values_and_stays_in_their_range() -> None:
    xs = [-2.0, -1.0, 0.0, 1.0]
    assert vertex(xs, [(x + 0.7) ** 2 for x in xs]) == pytest.approx(-0.7)
    assert vertex(xs, [3.0, 2.0, 1.0, 0.5]) == 1.0
    assert vertex(xs, [3.0, 2.0, 1.0, math.nan]) == 0.0


def test_too_few_and_impossible_runs_are_refused() -> None:
    some = [Point(n, d, loss(n, d)) for n, d in SIZES]
    with pytest.raises(UserError, match='there are 5 runs, 2 values of params and 4 of tokens'):
        fit_loss(some[:5])
    with pytest.raises(UserError, match='1 values of params'):
        fit_loss([Point(1e6, d, 3.0) for d in range(1, 9)])
    with pytest.raises(UserError, match='must be positive'):
        fit_loss([*some, Point(0, 1, 1)])


def test_the_figure_has_a_curve_and_marks_for_each_size() -> None:
    points = [Point(n, d, loss(n, d)) for n, d in SIZES]
    drawn = law_figure(points, fit_loss(points, 0))
    assert [trace.mode for trace in drawn.data] == [None, 'markers'] * 4
