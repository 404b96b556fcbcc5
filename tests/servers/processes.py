"""Commands run as processes of their own, to be killed or interrupted."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """The environment of a command: it compiles as a user's does, warnings come as they come."""
    return {**os.environ, 'PYTHONPATH': str(ROOT), 'JAX_DISABLE_MOST_OPTIMIZATIONS': 'false'}


def command(
    *arguments: str, kill: str | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m …`, or has `tests.servers.killer` run it."""
    killer = ['tests.servers.killer', kill] if kill else []
    return subprocess.run(
        [sys.executable, '-m', *killer, *arguments],
        env=environment(),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def passed(done: subprocess.CompletedProcess[str]) -> str:
    """The output of a command that must have succeeded."""
    assert done.returncode == 0, f'exit {done.returncode}\n{done.stdout}\n{done.stderr}'
    return done.stdout
