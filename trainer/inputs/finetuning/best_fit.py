import bisect
from collections.abc import Sequence

import numpy as np


def best_fit(lengths: Sequence[int], capacity: int, order: Sequence[int]) -> list[list[int]]:
    """Puts whole items into rows: best-fit decreasing (Johnson et al. 1974).

    The longest item comes first, into the row that it fills best. Rows are at most 11/9 of the
    fewest possible, plus some. Items of equal length come in the given order.

    Args:
        lengths: of each item, at most the capacity.
        capacity: of each row.
        order: the numbers of the items to put into rows.

    Returns:
        The items of each row, in the order in which rows were begun.

    Example:
        >>> best_fit([3, 5, 2, 4, 1], 6, range(5))
        [[1, 4], [3, 2], [0]]
    """
    sizes = np.asarray(lengths, np.int64)
    numbers = np.asarray(order, np.int64)
    rows: list[list[int]] = []
    by_space: dict[int, list[int]] = {}  # Rows by the space that is left.
    spaces: list[int] = []  # Sorted, those with rows.
    for item in numbers[np.argsort(-sizes[numbers], kind='stable')].tolist():
        size = int(sizes[item])
        at = bisect.bisect_left(spaces, size)
        if at == len(spaces):
            row, space = len(rows), capacity
            rows.append([])
        else:
            space = spaces[at]
            row = by_space[space].pop()
            if not by_space[space]:
                del spaces[at]
        rows[row].append(item)
        left = space - size  # Full rows take items without length.
        if not by_space.get(left):
            bisect.insort(spaces, left)
        by_space.setdefault(left, []).append(row)
    return rows
