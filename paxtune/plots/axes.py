"""Axes of decisions."""

from collections.abc import Sequence
from typing import Any

from paxtune.plots import layout

MOST_TICKS = 20


def decision_axis(name: str, labels: Sequence[str], is_log: bool) -> dict[str, Any]:
    """The plotly axis of a decision: `labels` are the candidates of a choice, none for a range.

    Example:
        >>> decision_axis('rate', [], is_log=True)
        {'title': 'rate', 'type': 'log'}
    """
    about: dict[str, Any] = {'title': layout.text(name, 40)}
    if not labels:
        return about | {'type': 'log' if is_log else 'linear'}
    ticks = layout.thinned(len(labels), MOST_TICKS)
    return about | {
        'type': 'linear',
        'tickvals': ticks,
        'ticktext': [layout.text(labels[tick], 20) for tick in ticks],
        'range': [-0.5, len(labels) - 0.5],
    }
