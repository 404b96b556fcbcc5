"""Figures of the model of a study, drawn by a process of their own.

Its libraries take 70 MB, which end with it: the server stays small.
"""

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paxtune import plots
from paxtune.page.commands import output_of
from paxtune.service import study_location
from trainer import command

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
        location: the arguments that name the study: see `commands.location_arguments`.
        name: the figure.
        settings: its arguments after the study.

    Raises:
        UserError: the study or the settings do not suit, or the process took too long.
    """
    import plotly.graph_objects as go

    code = 'from paxtune.page import model_process; model_process.serve()'
    given = json.dumps({'location': [*location], 'name': name, 'settings': settings})
    with _one_at_a_time:
        return go.Figure(json.loads(output_of(['-c', code], f'the figure {name}', given)))


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
