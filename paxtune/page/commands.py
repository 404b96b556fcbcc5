"""Commands of `paxtune.studies` on the shown study, each in a process of its own.

Building experiments and tracing models needs their classes, and with them JAX: hundreds of MB, and
code of users. The server of the page is kept free of both.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from trainer.symbolic.errors import UserError

_TIMEOUT = 600.0
_FLAGS = ('exp', 'vizier_endpoint', 'storage', 'study', 'token_file', 'tls', 'tls_ca')


class StudyCommands:
    """Runs commands, one after the other."""

    def __init__(self, location: Sequence[str]) -> None:
        """Keeps the arguments that name the study: see `location_arguments`."""
        self._location = list(location)
        self._lock = threading.Lock()
        # What an ended trial's decisions make never changes.
        self.architecture = functools.lru_cache(64)(self._architecture)
        self.difference = functools.lru_cache(64)(self._difference)

    def run(self, command: str, *arguments: str) -> str:
        """Runs a command and returns what it prints; raises UserError where it fails."""
        line = ['-m', 'paxtune.studies', command, *self._location, *arguments]
        with self._lock:
            return output_of(line, f'studies {command}')

    def _architecture(self, trial: int) -> list[dict[str, Any]]:
        """Returns the layers of a trial's models, as `studies show --trial` does."""
        found: list[dict[str, Any]] = self._json('show', f'--trial={trial}')['architecture']
        return found

    def _difference(self, left: int, right: int) -> dict[str, Any]:
        """Returns the data of `studies diff`."""
        found: dict[str, Any] = self._json('diff', str(left), str(right))
        return found

    def _json(self, command: str, *arguments: str) -> Any:
        return json.loads(self.run(command, '--format=json', *arguments))


def output_of(arguments: Sequence[str], name: str, given: str = '') -> str:
    """Runs Python in a process of its own, and returns what it prints.

    Args:
        arguments: those of Python.
        name: of the process, for messages.
        given: its standard input.

    Raises:
        UserError: the process failed, or took too long.
    """
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=os.environ | {'JAX_PLATFORMS': 'cpu'},  # An accelerator is for the trials.
            input=given,
            capture_output=True,
            text=True,
            errors='replace',
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f'{name} took more than {_TIMEOUT:.0f} s') from None
    if done.returncode:
        raise UserError(done.stderr.strip() or f'{name} failed')
    return done.stdout


def location_arguments(args: argparse.Namespace) -> list[str]:
    """Returns the arguments of a command that name the study of these.

    Example:
        >>> location_arguments(argparse.Namespace(dir='runs/a', exp='lm.Mine', tls=False))
        ['runs/a', '--exp=lm.Mine']
    """
    named = {name: getattr(args, name, None) for name in _FLAGS}
    flags = [
        f'--{name}' if each is True else f'--{name}={each}' for name, each in named.items() if each
    ]
    return [*([args.dir] if hasattr(args, 'dir') else []), *flags]
