"""The lines of a terminal, and the TAB key in a real shell."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.servers.processes import ROOT

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


BASH = """
eval "$(paxtune completion bash)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
_python_argcomplete paxtune
printf '%s\\n' "${COMPREPLY[@]}"
"""


def environment(folder: Path) -> dict[str, str]:
    """Returns an environment whose PATH has the command `paxtune`, as an installed wheel has it."""
    command = folder / 'bin' / 'paxtune'
    if not command.exists():
        command.parent.mkdir(exist_ok=True)
        run = 'from paxtune.__main__ import console; console()'
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(run)} "$@"\n')
        command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), os.environ['PATH']])
    return {**os.environ, 'PATH': path, 'PYTHONPATH': str(ROOT)}


def completed(line: str, folder: Path) -> list[str]:
    """Returns the completions that bash has for a line, in a directory; raises on any message."""
    done = subprocess.run(
        ['bash', '-c', BASH, 'bash', line],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=environment(folder),
    )
    assert done.stderr == ''
    return [each.rstrip() for each in done.stdout.splitlines() if each.strip()]
