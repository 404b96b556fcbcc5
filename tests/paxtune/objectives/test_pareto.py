"""Fronts, ranks and crowding."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.objectives.pareto import crowding_distances, dominates, front, ranks

_SCORES = st.sampled_from([-1.5, 0.0, 0.5, 1.0, 7.0]) | st.floats(-9, 9)
POINTS = st.integers(1, 4).flatmap(
    lambda objectives: st.lists(st.tuples(*[_SCORES] * objectives), max_size=25)
)


def test_dominance_is_better_somewhere_and_worse_nowhere():
    assert dominates((1, 2), (1, 1))
    assert not dominates((1, 1), (1, 1))
    assert not dominates((2, 0), (1, 1))
    assert not dominates((1, 1), (1, 2))
    with pytest.raises(ValueError):
        dominates((1, 1), (1,))


@given(POINTS)
def test_the_front_holds_all_undominated_points(points):
    assert front(points) == [
        index
        for index, point in enumerate(points)
        if not any(dominates(other, point) for other in points)
    ]


@given(POINTS)
def test_ranks_peel_fronts(points):
    expected: dict[int, int] = {}
    rank = 0
    while len(expected) < len(points):
        left = [index for index in range(len(points)) if index not in expected]
        current = [left[index] for index in front([points[index] for index in left])]
        expected |= dict.fromkeys(current, rank)
        rank += 1
    assert ranks(points) == [expected[index] for index in range(len(points))]


def test_equal_points_share_their_rank():
    points = [(1, 1), (0, 0), (1, 1), (0, 0)]
    assert front(points) == [0, 2]
    assert ranks(points) == [0, 1, 0, 1]


def test_crowding_distances_equal_the_definition():
    # Half the perimeter of the box between the neighbours, where the front spans 1 by 1.
    points = [(0.0, 10.0), (4.0, 0.0), (1.0, 6.0), (2.0, 5.0)]
    assert crowding_distances(points) == [math.inf, math.inf, 2 / 4 + 5 / 10, 3 / 4 + 6 / 10]


def test_constant_objectives_are_ignored():
    assert crowding_distances([(0, 5), (1, 5), (4, 5)]) == [math.inf, 1.0, math.inf]
    assert crowding_distances([(3, 3), (3, 3)]) == [0.0, 0.0]
    assert crowding_distances([]) == []


@given(POINTS)
def test_crowding_distances_are_scale_free(points):
    scaled = [tuple(4 * score for score in point) for point in points]
    assert crowding_distances(scaled) == crowding_distances(points)


def test_fronts_of_many_points_are_fast():
    points = [(math.cos(i), math.sin(i), i % 7) for i in range(3000)]
    found = front(points)
    assert all(not dominates(points[j], points[i]) for i in found[:20] for j in range(3000))
