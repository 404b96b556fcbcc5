"""The lines that a terminal shows, for tests."""

import re

_PARTS = re.compile(r'\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b])')


def final_lines(output: str) -> list[str]:
    """The lines that remain of an output with rich's control codes, without empty ones.

    Raises:
        ValueError: rich's live display does not write such a control code.
    """
    lines, row, column = [''], 0, 0
    for number, code, character in _PARTS.findall(output):
        if code == 'A':
            row = max(0, row - int(number or 1))
        elif code == 'K':
            lines[row] = ''
        elif character == '\r':
            column = 0
        elif character == '\n':
            row, column = row + 1, 0
            lines += [''] * (row + 1 - len(lines))
        elif character:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + character + line[column + 1 :]
            column += 1
        elif code not in 'mhl':
            raise ValueError(f'an unknown control code: {number}{code}')
    return [line.rstrip() for line in lines if line.strip()]
