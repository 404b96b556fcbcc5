"""Processes that end before they have a trial."""

import pytest

from paxtune.running.false_starts import FalseStarts


@pytest.mark.parametrize(('places', 'most', 'limit'), [(1, 3, 3), (2, 3, 6), (1, 8, 8)])
def test_false_starts_in_a_row_are_too_many_for_their_places(
    places: int, most: int, limit: int
) -> None:
    starts = FalseStarts(places)
    for _ in range(2):
        assert not any(starts.note(True, most) for _ in range(limit - 1))
        assert not starts.note(False, most) and starts.count == 0
    assert [starts.note(True, most) for _ in range(limit)] == [False] * (limit - 1) + [True]
