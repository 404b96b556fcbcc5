"""Figures fitted into the page: their fonts, margins, legends, and titles that a phone can show."""

import html as markup
from typing import TYPE_CHECKING, Any

from paxtune.analysis.trial_values import thinned
from paxtune.reports.folding import folded

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HEIGHT, _TEXT_HEIGHT = 440, 64
_LONG_TITLE = 30  # Characters.
_PHONE = 42  # Characters of a title that a phone shows in a line.
_MAX_TICKS = 5  # Numbers on an axis of half a phone.
_TITLE, _MARGIN = 18, 56  # Pixels: a line of the title, the room below a plot.
_RAISED = 11  # Pixels by which each further line raises a title.
_FONT = "system-ui, 'DejaVu Sans', sans-serif"


def fitted(made: 'go.Figure', revision: str) -> 'go.Figure':
    """Fits a figure into the page. One without traces is a line of text."""
    made.update_layout(
        font={'family': _FONT, 'size': 12, 'color': '#1c2430'},
        title={'font': {'size': 15}, 'x': 0.01, 'xanchor': 'left'},
        uirevision=revision,
        autosize=True,
    )
    if not made.data:
        made.update_layout(height=_TEXT_HEIGHT, margin={'l': 0, 'r': 0, 't': 0, 'b': 0})
        made.update_annotations(x=0.01, xanchor='left', font={'color': '#5b6676', 'size': 14})
        return made
    made.layout.title.text = _divided(made.layout.title.text or '', _PHONE)
    height, others = made.layout.height or _HEIGHT, made.layout.title.text.count('<br>')
    top = (made.layout.margin.t or 64) + _TITLE * others
    made.update_layout(
        height=height + _TITLE * others,
        margin={'t': top, 'b': _MARGIN, 'l': 72, 'r': 24},
        # Beside the plot, a legend is outside of a phone, and below the tools.
        legend={'orientation': 'h', 'x': 0, 'xanchor': 'left', 'yanchor': 'top'}
        | {'y': -_MARGIN / (height - 64 - _MARGIN)},
        modebar={'orientation': 'h', 'bgcolor': 'rgba(255,255,255,0.8)'},
    )
    columns = len({axis.domain for axis in made.select_xaxes()})
    made.for_each_xaxis(lambda axis: _divide_title(axis, columns))
    made.layout.title.update(
        y=1.0, yref='container', yanchor='top', pad={'t': 14 + _RAISED * others}
    )
    made.update_xaxes(automargin=True)
    made.update_yaxes(automargin=True)
    # Labels between the powers of ten overlap.
    made.for_each_yaxis(lambda axis: axis.update(nticks=6) if axis.type == 'log' else None)
    made.for_each_yaxis(_shorten_title)
    return made


def _divide_title(axis: Any, columns: int) -> None:
    """Divides the title of a horizontal axis that several plots share a phone with."""
    if columns < 2:
        return
    if axis.title.text:
        axis.title.text = _divided(axis.title.text, _LONG_TITLE // columns)
        axis.title.font.size = 11
    ticks, texts = ([] if each is None else [*each] for each in (axis.tickvals, axis.ticktext))
    # Numbers name those between them; texts do not.
    if len(ticks) > _MAX_TICKS and all(map(_is_number, texts)):
        kept = thinned(len(ticks), _MAX_TICKS)
        axis.update(tickvals=[ticks[row] for row in kept], ticktext=[texts[row] for row in kept])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _divided(title: str, width: int) -> str:
    """Divides a title into lines: its entities are one character each."""
    if '<' in title:  # A remark has a line of its own.
        return title.replace(' <i>(', '<br><i>(')
    lines = folded(markup.unescape(title), width)
    return '<br>'.join(markup.escape(line, quote=False) for line in lines)


def _shorten_title(axis: Any) -> None:
    """Divides an upright title that is longer than the axis."""
    title = axis.title.text or ''
    if len(title) > _LONG_TITLE:
        axis.title.text = title.replace(' (', '<br>(')
        axis.title.font.size = 11
