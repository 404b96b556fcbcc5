"""The origin of a study: command, versions and commit of the process that makes it."""

import functools
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from paxtune.study.record import Provenance

PACKAGES = ('paxtune', 'jax', 'flax', 'optax', 'pyglove')
"""The packages whose versions influence the results of a search."""

_GIT = ('git', '-c', 'core.fsmonitor=false', 'describe', '--always', '--abbrev=40', '--exclude=*')
_SECONDS = 10.0


def current(command: Sequence[str]) -> Provenance:
    """Describes this process.

    Args:
        command: the module of its command and the flags; empty without one.

    Example:
        >>> current(['paxtune.search', '--exp=lm.StdlibTunable']).versions['python']
        '3...'
    """
    try:
        commit = _commit(Path.cwd())
    except OSError:  # The working directory was deleted.
        commit = ''
    return Provenance(tuple(command), _versions(), commit)


@functools.cache
def _versions() -> dict[str, str]:
    found = {'python': platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # It runs from its sources.
            continue
    return found


@functools.cache
def _commit(directory: Path) -> str:
    # Git shall not write its index: another process may be at work there.
    environment = {**os.environ, 'GIT_OPTIONAL_LOCKS': '0'}
    try:
        done = subprocess.run(
            [*_GIT, '--dirty'],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return ''
    return done.stdout.strip()
