"""Empirical-Bayes shrinkage of noisy rewards."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paxtune.objectives.shrinkage import Shrinkage, mean, shrunken_means, standard_error

VALUES = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=4)
GROUPS = st.lists(VALUES, min_size=1, max_size=12)


def regrets(seed: int, noise: float, has_tail: bool) -> tuple[float, float]:
    """Regrets of the luckiest trial and of the best group by `shrunken_means`.

    40 groups have one value, and the five that look best two more. With a tail some diverge.
    """
    rng = random.Random(seed)
    true = [rng.gauss(0, 1) for _ in range(40)]
    if has_tail:
        true = [value if rng.random() < 0.7 else -rng.expovariate(1e-3) for value in true]
    groups = [[value + rng.gauss(0, noise)] for value in true]
    for index in sorted(range(40), key=lambda i: -groups[i][0])[:5]:
        groups[index] += [true[index] + rng.gauss(0, noise) for _ in range(2)]
    lucky = max(range(40), key=lambda i: max(groups[i]))
    expected = shrunken_means(groups)
    best = max(range(40), key=lambda i: expected[i])
    return max(true) - true[lucky], max(true) - true[best]


@pytest.mark.parametrize('noise', [0.3, 1.0, 2.0])
@pytest.mark.parametrize('has_tail', [False, True])
def test_shrinkage_selects_better_than_the_maximum(noise: float, has_tail: bool) -> None:
    found = [regrets(seed, noise, has_tail) for seed in range(200)]
    lucky, best = (mean(column) for column in zip(*found, strict=True))
    assert best < 0.9 * lucky


def test_shrunken_means_are_not_biased_upwards() -> None:
    surprises: list[float] = []
    boasts: list[float] = []
    for seed in range(200):
        rng = random.Random(seed)
        true = [rng.gauss(0, 1) for _ in range(40)]
        groups = [[value + rng.gauss(0, 1) for _ in range(rng.choice([1, 3]))] for value in true]
        expected = shrunken_means(groups)
        best = max(range(40), key=lambda i: expected[i])
        surprises.append(expected[best] - true[best])
        lucky = max(range(40), key=lambda i: max(groups[i]))
        boasts.append(max(groups[lucky]) - true[lucky])
    assert mean(boasts) > 1
    assert abs(mean(surprises)) < 0.2


@given(GROUPS)
def test_shrunken_means_lie_between_mean_and_center(groups: list[list[float]]) -> None:
    found = Shrinkage.estimate(groups)
    for value, group in zip(shrunken_means(groups), groups, strict=True):
        middle = mean(group) if found is None else found.center
        low, high = sorted([mean(group), middle])
        assert low - 1e-9 <= value <= high + 1e-9


@given(st.integers(1, 4).flatmap(lambda n: st.lists(
    st.lists(st.integers(-50, 50).map(float), min_size=n, max_size=n), min_size=1, max_size=9
)))  # fmt: skip
def test_equal_counts_keep_the_order_of_the_means(
    groups: list[list[float]],
) -> None:
    found, means = shrunken_means(groups), [mean(group) for group in groups]
    for i in range(len(groups)):
        for j in range(len(groups)):
            if means[i] < means[j]:
                assert found[i] < found[j]


# The mean of three 0.049 is above 0.049 by rounding.
@example(groups=[[0.0], [0.0], [0.0, 1.0], [0.0, 0.0, 0.0]], unit=1.0, origin=0.049)
@given(GROUPS, st.floats(0.01, 100), st.floats(-100, 100))
def test_shrinkage_is_scale_free(groups: list[list[float]], unit: float, origin: float) -> None:
    there = shrunken_means([[round(value) * 1.0 for value in group] for group in groups])
    moved = shrunken_means([[round(value) * unit + origin for value in group] for group in groups])
    expected = [value * unit + origin for value in there]
    assert moved == pytest.approx(expected, rel=1e-4, abs=1e-4 * max(unit, 1))


@given(GROUPS, st.randoms(use_true_random=False))
def test_shrinkage_is_independent_of_the_order(groups: list[list[float]], rng: Any) -> None:
    order = list(range(len(groups)))
    rng.shuffle(order)
    there, mixed = shrunken_means(groups), shrunken_means([groups[index] for index in order])
    assert [there[index] for index in order] == pytest.approx(mixed)


@given(st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=3)))
def test_finite_rewards_have_finite_shrunken_means(groups: list[list[float]]) -> None:
    assert not any(math.isnan(value) for value in shrunken_means(groups))


@pytest.mark.parametrize(
    'groups',
    [
        [[1.0], [3.0], [2.0]],  # No group has two values.
        [[1.0, 1.0], [3.0], [2.0, 2.0]],  # There is no noise.
        [[1.0, 2.0]],  # There is only one group.
        [],
    ],
)
def test_means_stay_without_a_noise_estimate(groups: Sequence[Sequence[float]]) -> None:
    assert shrunken_means(groups) == [mean(group) for group in groups]


def test_pure_noise_ranks_replicated_groups_first() -> None:
    rest = [[0.0, 2.0], [2.0, 0.0], [-1.0, 2.0], [0.0]]
    once, often = shrunken_means([[1.6], [1.5, 3.0, 0.0, 1.5, 1.5], *rest])[:2]
    assert once < often


def test_diverged_trials_do_not_hide_differences_of_good_ones() -> None:
    good = [[2.0], [1.0, 0.0, 1.4], [0.4], [-0.2, 1.0], [0.1]]
    with_bad = Shrinkage.estimate([*good, [-1e30], [-5e9, -1e12]])
    assert with_bad is not None
    assert with_bad.signal < 10


def test_standard_errors() -> None:
    assert standard_error([5.0]) is None
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / math.sqrt(3))
    assert standard_error([-1e308, 1e308]) == math.inf
    assert mean([1.7e308, 1.7e308]) == 1.7e308
