"""Text folded to the width of a terminal, between words and names, and not inside numbers."""

import re

_BREAKS = (
    re.compile(r'(?<=\s)'),
    re.compile(r'(?<=[/=,;])'),
    # A number has dots and signs inside, which no letter follows.
    re.compile(r'(?<=[_.:)\]-])(?=[^\W\d_])'),
)
"""Places where text may be folded, the best ones first."""


def folded(text: str, width: int) -> list[str]:
    """Divides text into lines; a name without a better place is cut at the width.

    Args:
        text: one line.
        width: of a line, in cells of a terminal.

    Example:
        >>> folded('dev/bits_per_byte learning_rate=0.00465894', 16)
        ['dev/', 'bits_per_byte', 'learning_rate=', '0.00465894']
    """
    return [line.rstrip() for line in _folded(text, max(width, 1), 0)]


def _folded(text: str, width: int, level: int) -> list[str]:
    from rich.cells import cell_len, chop_cells

    lines = ['']
    is_last = level == len(_BREAKS) - 1
    for piece in _BREAKS[level].split(text):
        joined = lines[-1] + piece
        if cell_len(joined.rstrip()) <= width:
            lines[-1] = joined
        elif cell_len(piece.rstrip()) <= width:
            lines.append(piece)
        elif is_last:
            lines[-1:] = chop_cells(joined, width)
        else:
            lines += _folded(piece, width, level + 1)
    return [line for line in lines if line] or ['']


def longest_name(heading: str) -> int:
    """Returns the width that keeps each name of a heading such as `dev/loss` whole.

    Example:
        >>> longest_name('dev/bits_per_byte')
        13
    """
    from rich.cells import cell_len

    return max(cell_len(each.rstrip()) for each in _BREAKS[1].split(heading))
