"""The view of trials by two numbers."""

import re
from typing import TYPE_CHECKING

from paxtune import plots
from paxtune.page.figures import Chosen, Panel, figure_view, of_study
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


VIEW = figure_view(
    '/trade-off',
    'Trade-off',
    5,
    'Completed trials by two metrics, and their Pareto front.',
    Panel('pareto-front', _pareto_front, ('x', 'y')),
    Panel('hypervolume', of_study(plots.hypervolume), (), opens_trials=False),
)
