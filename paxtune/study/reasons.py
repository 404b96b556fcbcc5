"""Reasons for people: reasons that differ only in numbers and addresses are merged."""

import re
from collections.abc import Iterable

# The names of temporary files are as arbitrary as addresses.
_NUMBER = re.compile(r'0x[\da-fA-F]+|\btmp\w{8}\b|\d[\d.]*(e[+-]?\d+)?')


def commonest(reasons: Iterable[str]) -> list[tuple[int, str]]:
    """Counts each reason, the most common first, in the wording of its first occurrence.

    Example:
        >>> commonest(
        ...     ['no data', 'size is 3.5', 'size is 7e2', 'no <f at 0x7f1>', 'no <f at 0xab>']
        ... )
        [(2, 'size is 3.5'), (2, 'no <f at 0x7f1>'), (1, 'no data')]
    """
    alike: dict[str, list[str]] = {}
    for reason in reasons:
        line = reason.split('\n')[0]
        alike.setdefault(_NUMBER.sub('0', line), []).append(line)
    ordered = sorted(alike.values(), key=len, reverse=True)
    return [(len(same), same[0]) for same in ordered]
