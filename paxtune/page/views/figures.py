"""Views of figures whose arguments are chosen in them."""

import re
from typing import TYPE_CHECKING

from paxtune import plots
from paxtune.page.figures import LOOK, Chosen, Panel, figure_view, of_study
from paxtune.page.live import LiveStudy
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go


def _pareto_front(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    x, y = chosen['x'], chosen['y']
    if x is not None and y is not None and x.removeprefix('+') == y.removeprefix('+'):
        raise UserError('Choose two different numbers.')
    try:
        return plots.pareto_front(live.study, x, y)
    except UserError as error:  # It names the flags of a command.
        raise UserError(re.sub(r'^--[xy]=', '', str(error))) from error


LEARNING = figure_view(
    '/learning',
    'Learning',
    'A cross ends the curve of a trial that was stopped early, a square the curve of a paused one; '
    'dotted lines are rungs.',
    Panel(
        'curves',
        of_study(plots.curves, over='curves_over'),
        ('reward', 'curves_over', *LOOK),
    ),
    Panel('rank-correlations', of_study(plots.rank_correlations), opens_trials=False),
    Panel(
        'best-so-far',
        of_study(plots.best_so_far),
        ('reward', 'x_scale', 'y_scale'),
        opens_trials=False,
    ),
)

TRADE_OFF = figure_view(
    '/trade-off',
    'Trade-off',
    'Completed trials by two metrics, and their Pareto front.',
    Panel('pareto-front', _pareto_front, ('x', 'y', 'x_scale', 'y_scale')),
    Panel('hypervolume', of_study(plots.hypervolume), (), opens_trials=False),
)

WORKERS = figure_view(
    '/workers',
    'Workers',
    'The attempts of each worker over time, by how they ended.',
    Panel('timeline', of_study(plots.timeline), ()),
)

LINEAGE = figure_view(
    '/lineage',
    'Lineage',
    'Which trial comes from which: weights, decisions, replicates; pauses and promotions.',
    Panel('lineage', of_study(plots.lineage)),
)
