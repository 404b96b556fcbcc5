"""Shrinking of a failing schedule: the fewest faults that still violate an invariant."""

from collections.abc import Callable, Sequence


def shrink(names: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """Removes names, first many at once and then single ones, while `fails` returns True.

    Example:
        >>> shrink('abcdefgh', lambda kept: {'c', 'g'} <= set(kept))
        ['c', 'g']
    """
    kept, size = list(names), max(1, len(names) // 2)
    while size:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if fails(fewer):
                kept = fewer
            else:
                start += size
        size //= 2
    return kept
