"""Figures of the model of a study, drawn by a process of their own.

Its libraries take 70 MB, which end with it: the server stays small.
"""

import contextlib
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

FIGURES: dict[str, Callable[..., 'go.Figure']] = {
    'cross_validation': plots.cross_validation,
    'effects': plots.effects,
    'sensitivity': plots.sensitivity,
    'surface': plots.surface,
}
"""The figures by name."""

_TIMEOUT = 600.0

# Each process may need as much memory as the server.
_one_at_a_time = threading.Lock()


def drawn_elsewhere(location: Sequence[str], name: str, settings: Mapping[str, Any]) -> 'go.Figure':
    """Draws a figure in a process that ends with it.

    Args:
        location: the arguments that name the study: see `commands.location_arguments`.
        name: the figure.
        settings: its arguments after the study.

    Raises:
        UserError: the study or the settings do not suit, or the process took too long.
    """
    import plotly.graph_objects as go

    line = [sys.executable, '-c', 'from paxtune.page import model_process; model_process.serve()']
    given = json.dumps({'location': [*location], 'name': name, 'settings': settings})
    with _one_at_a_time:
        try:
            done = subprocess.run(
                line,
                env=os.environ | {'JAX_PLATFORMS': 'cpu'},
                input=given,
                capture_output=True,
                text=True,
                errors='replace',
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UserError(f'The figure took more than {_TIMEOUT:.0f} s.') from None
    if done.returncode:
        raise UserError(done.stderr.strip() or f'{name}: the process failed')
    return go.Figure(json.loads(done.stdout))


def serve() -> None:
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
