"""Presses the TAB key in a real shell."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.servers.processes import ROOT

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
