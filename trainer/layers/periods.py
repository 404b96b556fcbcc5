import itertools
import re
from collections.abc import Hashable, Sequence


def periods(kinds: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Splits a sequence into repeated periods, so that the sum of their lengths is smallest.

    Of equal sums, the first periods are as short as possible, with most repetitions.

    Returns:
        (length of the period, number of repetitions) of each part; (1, 1) for a single element.

    Example:
        >>> periods('ABABABC')
        [(2, 3), (1, 1)]
        >>> periods('LLLGLLLG' + 'LLLG')
        [(4, 3)]
        >>> periods('AAABAAAB')
        [(1, 3), (1, 1), (1, 3), (1, 1)]
    """
    end = len(kinds)
    # best[start]: sum of lengths from there on, then the length and count of the first part.
    best = [(0, 0, 0)] * (end + 1)
    repeated = [[0] * (end + 1) for _ in range(end + 1)]
    for start in reversed(range(end)):
        options = []
        for length in range(1, end - start + 1):
            # Number of elements from `start` on that are equal to those `length` later.
            if start + length < end and kinds[start] == kinds[start + length]:
                repeated[length][start] = repeated[length][start + 1] + 1
            most = 1 + repeated[length][start] // length
            for count in range(1 if length == 1 else 2, most + 1):
                total = length + best[start + length * count][0]
                options.append((total, length, -count))
        total, length, negative = min(options)
        best[start] = total, length, -negative
    parts: list[tuple[int, int]] = []
    start = 0
    while start < end:
        _, length, count = best[start]
        parts.append((length, count))
        start += length * count
    return parts


def scanned_layers(name: str) -> list[str]:
    """The names of the scanned layers stored as `name`; [] if it is a single layer.

    Example:
        >>> scanned_layers('layers_2x3'), scanned_layers('layers_2')
        (['layers_2', 'layers_3', 'layers_4'], [])
        >>> scanned_layers('layers_2x3by2')
        ['layers_2', 'layers_4', 'layers_6']
    """
    scanned = re.fullmatch(r'layers_(\d+)x(\d+)(?:by(\d+))?', name)
    if not scanned:
        return []
    first, length, step = int(scanned[1]), int(scanned[2]), int(scanned[3] or 1)
    return [f'layers_{first + step * i}' for i in range(length)]


def names(path: Sequence[str], separator: str = '.') -> list[str]:
    """The names of the parameters stored at a path, one for each layer of a scanned run.

    Example:
        >>> names(('stack', 'layers_0x2', 'scale'))
        ['stack.layers_0.scale', 'stack.layers_1.scale']
        >>> names(('stack', 'layers_1x2by6', 'scale'))  # One layer in six.
        ['stack.layers_1.scale', 'stack.layers_7.scale']
    """
    parts = [scanned_layers(part) or [part] for part in map(str, path)]
    return [separator.join(each) for each in itertools.product(*parts)]
