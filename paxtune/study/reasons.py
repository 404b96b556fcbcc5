"""Reasons for people: reasons that differ only in numbers are merged."""

import re
from collections.abc import Iterable

_NUMBER = re.compile(r'\d[\d.]*(e[+-]?\d+)?')


def commonest(reasons: Iterable[str]) -> list[tuple[int, str]]:
    """Counts each reason, the most common first, in the wording of its first occurrence.

    Example:
        >>> commonest(['no data', 'size is 3.5', 'size is 7e2'])
        [(2, 'size is 3.5'), (1, 'no data')]
    """
    alike: dict[str, list[str]] = {}
    for reason in reasons:
        line = reason.split('\n')[0]
        alike.setdefault(_NUMBER.sub('0', line), []).append(line)
    ordered = sorted(alike.values(), key=len, reverse=True)
    return [(len(same), same[0]) for same in ordered]
