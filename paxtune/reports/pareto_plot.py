import html
import importlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from paxtune.reports.pareto_table import Axis, Front, Point
from trainer.symbolic.errors import UserError, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMS = {'.html': ('plotly', 'plotly'), '.png': ('matplotlib', "'paxtune[png]'")}
"""By what a file is called: what draws it, and what `pip install` takes for that."""

_UNITS = {'_bytes': 'B', '_seconds': 's'}
"""Of metrics, by how their names end."""

_FRONT, _OTHERS = '#1f77b4', '#9a9a9a'
_SPAN = 20.0  # Values that differ more than so many times are rendered on a logarithmic scale.
_MOST_DECISIONS, _LONGEST = 25, 80  # Of what is shown of a trial under the pointer.
_PLACES = ((6, 5), (6, -13), (-6, 5), (-6, -13), (0, 9), (0, -17))
"""Where the number of a trial may stand beside its point, in typographic points."""


def require(out: str) -> None:
    """Raises UserError where a plot cannot be rendered into a file of this name."""
    form = os.path.splitext(out)[1].lower()
    if form not in FORMS:
        raise UserError(f'--out={out}: a plot is FILE.html or FILE.png')
    library, name = FORMS[form]
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise UserError(
            f'--out={out}: {library} draws it, and is not installed: pip install {name}'
        ) from error


def rendered(front: Front, out: str) -> bytes:
    """Renders the front for a file name that `require` has accepted."""
    return to_html(front).encode() if out.lower().endswith('.html') else to_png(front)


def to_html(front: Front) -> str:
    """A page that needs no network; under the pointer are the decisions of each trial."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, color, points in _groups(front):
        x, y = _columns(points)
        figure.add_trace(
            go.Scatter(
                x=x,
                y=y,
                mode='markers',
                marker={'color': color, 'size': 9},
                name=name,
                hovertext=[_hover(front, point) for point in points],
                hoverinfo='text',
            )
        )
    x, y = _columns(front.best)
    figure.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode='lines',
            line={'color': _FRONT, 'width': 1.5, 'shape': 'vh' if front.x.is_maximized else 'hv'},
            hoverinfo='skip',
            showlegend=False,
        )
    )
    x, y = _columns(front.points)
    for axis, values, update in (
        (front.x, x, figure.update_xaxes),
        (front.y, y, figure.update_yaxes),
    ):
        update(title=title(axis), type='log' if _is_log(axis, values) else 'linear')
        if _has_prefixes(axis, values):
            update(tickformat='~s', ticksuffix=_unit(axis))
    figure.update_layout(template='plotly_white', title=_heading(front))
    return str(figure.to_html(include_plotlyjs=True))


def to_png(front: Front) -> bytes:
    """A picture of 1600 × 1000 pixels; trials of the front have their numbers beside them."""
    # Not `pyplot`, which looks for a screen and keeps figures.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=200, layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for order, (name, color, points) in enumerate(_groups(front), start=2):
        axes.scatter(*_columns(points), s=26, color=color, label=name, zorder=order)
    where: Literal['pre', 'post'] = 'pre' if front.x.is_maximized else 'post'
    axes.step(*_columns(front.best), where=where, color=_FRONT, linewidth=1.2, zorder=1)
    _scale(axes, front)
    axes.set_title(_heading(front), fontsize=11)
    axes.grid(color='#e6e6e6', linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[['top', 'right']].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.canvas.draw()
    _number(axes, front.best)
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png')
    return buffer.getvalue()


def title(axis: Axis) -> str:
    """Returns the label of an axis."""
    good = 'more' if axis.is_maximized else 'less'
    return f'{shortened(axis.name, max_length=_LONGEST)} ({good} is better)'


def _unit(axis: Axis) -> str:
    return next((unit for end, unit in _UNITS.items() if axis.name.endswith(end)), '')


def _heading(front: Front) -> str:
    return f'Pareto front: {len(front.best)} of {len(front.points)} trials'


def _groups(front: Front) -> Iterator[tuple[str, str, list[Point]]]:
    """Yields the groups of points: name, color, trials."""
    if front.others:
        yield 'other trials', _OTHERS, front.others
    yield 'front', _FRONT, front.best


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.x for point in points], [point.y for point in points]


def _is_log(axis: Axis, values: Sequence[float]) -> bool:
    return axis.reward is None and min(values) > 0 and max(values) >= _SPAN * min(values)


def _has_prefixes(axis: Axis, values: Sequence[float]) -> bool:
    """Returns True if 1000 is written as 1 k."""
    return bool(_unit(axis)) or max(map(abs, values)) >= 1000


def _hover(front: Front, point: Point) -> str:
    decisions = [
        f'{front.names[path]}: {shortened(str(value), max_length=_LONGEST)}'
        for path, value in point.decisions.items()
    ]
    more = len(decisions) - _MOST_DECISIONS
    if more > 0:
        decisions[_MOST_DECISIONS:] = [f'and {more} more']
    lines = [f'{front.x.name}: {point.x:.6g}', f'{front.y.name}: {point.y:.6g}', *decisions]
    return '<br>'.join([f'<b>trial {point.trial}</b>', *map(html.escape, lines)])


def _scale(axes: 'Axes', front: Front) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    x, y = _columns(front.points)
    for axis, values, drawn_axis, set_scale in (
        (front.x, x, axes.xaxis, axes.set_xscale),
        (front.y, y, axes.yaxis, axes.set_yscale),
    ):
        if _is_log(axis, values):
            set_scale('log')
            decades = math.log10(max(values) / min(values))
            subs = (1.0, 2.0, 5.0) if decades < 4 else (1.0,)
            drawn_axis.set_major_locator(LogLocator(subs=subs))
            drawn_axis.set_minor_formatter(NullFormatter())
        if _has_prefixes(axis, values):
            drawn_axis.set_major_formatter(EngFormatter(_unit(axis), sep=' '))
        drawn_axis.set_label_text(title(axis))


def _number(axes: 'Axes', points: Sequence[Point]) -> None:
    """Writes the numbers of trials beside their points, where there is room."""
    from matplotlib.transforms import Bbox

    dots = [axes.transData.transform((point.x, point.y)) for point in points]
    taken = [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in dots]
    for point in points:
        for right, up in _PLACES:
            text = axes.annotate(
                str(point.trial),
                (point.x, point.y),
                xytext=(right, up),
                textcoords='offset points',
                ha='left' if right > 0 else 'right' if right < 0 else 'center',
                fontsize=8,
                color=_FRONT,
            )
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()
