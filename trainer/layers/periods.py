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
