"""Trials by two numbers, as a document and as a plot: see `paxtune.analysis.trade_off`."""

import io
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from paxtune.analysis.trade_off import Front, Point
from paxtune.plots import pareto
from paxtune.reports.tables import Document, Table
from trainer.symbolic import extras
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMS = ('.html', '.png')
"""The suffixes of files that a plot can be rendered into."""

_PLACES = ((6, 5), (6, -13), (-6, 5), (-6, -13), (0, 9), (0, -17))
"""Where the number of a trial may stand beside its point, in typographic points."""


def require(out: str) -> None:
    """Raises UserError if a plot cannot be rendered into a file of this name."""
    form = os.path.splitext(out)[1].lower()
    if form not in FORMS:
        raise UserError(f'--out={out}: a plot is FILE.html or FILE.png')
    if form == '.png':
        extras.require('png', f'--out={out}', 'matplotlib')


def rendered(front: Front, out: str) -> bytes:
    """Renders the front for a file name that `require` has accepted."""
    return to_html(front).encode() if out.lower().endswith('.html') else to_png(front)


def to_html(front: Front) -> str:
    """A page that needs no network; under the pointer are the decisions of each trial."""
    return str(pareto.figure_of(front).to_html(include_plotlyjs=True))


def to_png(front: Front) -> bytes:
    """A picture of 1600 × 1000 pixels; trials of the front have their numbers beside them."""
    buffer = io.BytesIO()
    drawn(front).savefig(buffer, format='png')
    return buffer.getvalue()


def drawn(front: Front) -> 'Figure':
    """The figure of `to_png`."""
    # Not `pyplot`, which looks for a screen and keeps figures.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=200, layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for order, (name, color, points) in enumerate(pareto.groups(front), start=2):
        axes.scatter(*pareto.columns(points), s=26, color=color, label=name, zorder=order)
    where: Literal['pre', 'post'] = 'pre' if front.x.is_maximized else 'post'
    axes.step(*pareto.columns(front.best), where=where, color=pareto.FRONT, linewidth=1.2, zorder=1)
    _scale(axes, front)
    axes.set_title(pareto.heading(front), fontsize=11)
    axes.grid(color='#e6e6e6', linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[['top', 'right']].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.canvas.draw()
    _number(axes, front.best)
    return figure


def _scale(axes: 'Axes', front: Front) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    x, y = pareto.columns(front.points)
    for axis, values, drawn_axis, set_scale in (
        (front.x, x, axes.xaxis, axes.set_xscale),
        (front.y, y, axes.yaxis, axes.set_yscale),
    ):
        if pareto.is_log(axis, values):
            set_scale('log')
            decades = math.log10(max(values) / min(values))
            subs = (1.0, 2.0, 5.0) if decades < 4 else (1.0,)
            drawn_axis.set_major_locator(LogLocator(subs=subs))
            drawn_axis.set_minor_formatter(NullFormatter())
        if pareto.has_prefixes(axis, values):
            drawn_axis.set_major_formatter(EngFormatter(pareto.unit(axis), sep=' '))
        drawn_axis.set_label_text(pareto.title(axis))


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
                color=pareto.FRONT,
            )
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def document(front: Front) -> Document:
    """The trials of a front: for people those alone, for programs all, with those behind it."""
    names = [front.x.name, front.y.name]
    rows = [
        {
            'trial': point.trial,
            'front': point.is_best,
            **dict(zip(names, (point.x, point.y), strict=True)),
            **{f'decisions.{path}': value for path, value in point.decisions.items()},
        }
        for point in front.points
    ]
    columns = ['trial', 'front', *names, *(f'decisions.{path}' for path in front.names)]
    best = [row for row in rows if row['front']]
    axes = [
        {'name': axis.name, 'goal': 'maximize' if axis.is_maximized else 'minimize'}
        for axis in (front.x, front.y)
    ]
    remark = 'No trial was completed yet.'
    if rows:
        goals = ', '.join(f'{axis["name"]} ({axis["goal"]})' for axis in axes)
        remark = f'{len(best)} of {len(rows)} completed trials are on the front of {goals}.'
    decided = {f'decisions.{path}': name for path, name in front.names.items()}
    tables = [Table.compact(best, ['trial', *names, 'decisions'], decided)]
    return Document({'x': axes[0], 'y': axes[1], 'trials': rows}, rows, columns, tables, remark)
