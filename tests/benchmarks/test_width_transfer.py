"""The best learning rate between the values of a grid."""

import math

import pytest

from benchmarks.width_transfer import vertex


def test_the_vertex_lies_between_values_and_stays_in_their_range() -> None:
    xs = [-2.0, -1.0, 0.0, 1.0]
    assert vertex(xs, [(x + 0.7) ** 2 for x in xs]) == pytest.approx(-0.7)
    assert vertex(xs, [3.0, 2.0, 1.0, 0.5]) == 1.0
    assert vertex(xs, [3.0, 2.0, 1.0, math.nan]) == 0.0
