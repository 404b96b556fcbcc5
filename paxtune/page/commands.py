"""Commands of `paxtune.studies` on the shown study, each in a process of its own.

Building experiments and tracing models needs their classes, and with them JAX: hundreds of MB, and
code of users. The server of the page is kept free of both.
"""

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paxtune import plots
from paxtune.service import study_location
from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go

_TIMEOUT = 600.0
_FLAGS = ('exp', 'vizier_endpoint', 'storage', 'study', 'token_file', 'tls', 'tls_ca')


class StudyCommands:
    """Runs commands, one at a time."""

    def __init__(self, location: Sequence[str]) -> None:
        """Keeps the arguments that name the study: see `location_arguments`."""
        self._location = list(location)
        self._lock = threading.Lock()
        # The experiment of an ended trial never changes.
        self.architecture = functools.lru_cache(64)(self._architecture)
        self.difference = functools.lru_cache(64)(self._difference)

    def run(self, command: str, *arguments: str) -> str:
        """Runs a command and returns its output; raises UserError if it fails."""
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
    """Runs Python in another process, and returns its output.

    Args:
        arguments: of Python.
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


FIGURES: dict[str, Callable[..., 'go.Figure']] = {
    'cross_validation': plots.cross_validation,
    'effects': plots.effects,
    'sensitivity': plots.sensitivity,
    'surface': plots.surface,
}
"""The figures by name."""

# Each process may need as much memory as the server.
_one_at_a_time = threading.Lock()


def drawn_elsewhere(location: Sequence[str], name: str, settings: Mapping[str, Any]) -> 'go.Figure':
    """Draws a figure in a process that ends with it.

    Args:
        location: the arguments that name the study: see `location_arguments`.
        name: the figure.
        settings: its arguments after the study.

    Raises:
        UserError: the study or the settings do not suit, or the process took too long.
    """
    import plotly.graph_objects as go

    code = 'from paxtune.page import commands; commands.draw()'
    given = json.dumps({'location': [*location], 'name': name, 'settings': settings})
    with _one_at_a_time:
        return go.Figure(json.loads(output_of(['-c', code], f'the figure {name}', given)))


def draw() -> None:
    """Draws the figure that standard input names, to standard output; errors are messages."""
    command.run_command(_draw)


def _draw(argv: Sequence[str] | None) -> int:
    from plotly.utils import PlotlyJSONEncoder

    flags = command.parser(__doc__)
    flags.add_argument('dir', nargs='?')
    flags.add_argument('--exp')
    study_location.add_flags(flags, 'in place of a directory')
    given = json.load(sys.stdin)
    args = flags.parse_args(given['location'])
    with contextlib.closing(study_location.from_flags(args).open()) as study:
        figure = FIGURES[given['name']](study, **given['settings'])
    print(json.dumps(figure.to_plotly_json(), cls=PlotlyJSONEncoder))
    return 0
