"""The view of decisions: importance, and values of trials over them."""

from typing import TYPE_CHECKING

from paxtune import plots
from paxtune.analysis.decision_columns import MAX_DECISIONS
from paxtune.analysis.forest import fit_elsewhere
from paxtune.analysis.importance import Importances, importances_by
from paxtune.page.figures import Chosen, Panel, figure_view
from paxtune.page.live import LiveStudy
from paxtune.plots.decisions import importance_figure
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go


def _importances(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    return importance_figure(live.study, _ranking(live, chosen['reward']))


def _parallel_coordinates(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    reward = chosen['reward']
    return plots.parallel_coordinates(live.study, reward, _most_important(live, reward))


def _slices(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    reward = chosen['reward']
    return plots.slices(live.study, reward, _most_important(live, reward))


def _contour(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    given = [chosen['first'], chosen['second']]
    if given[0] is not None and given[0] == given[1]:
        raise UserError('Choose two different decisions.')
    if None in given:
        ranked = [each.path for each in _ranking(live, chosen['reward']).decisions]
        others = iter([path for path in ranked if path not in given])
        given = [each or next(others, None) for each in given]
    first, second = given
    return plots.contour(live.study, first, second, chosen['reward'])


def _ranking(live: LiveStudy, reward: str | None) -> Importances:
    """The importance of decisions, which several figures need."""
    if reward is None and not live.study.rewards:
        raise UserError('The study has no reward: name a metric.')
    found: Importances = live.computed(
        ('ranking', reward), lambda: importances_by(fit_elsewhere, live.study, reward)
    )
    return found


def _most_important(live: LiveStudy, reward: str | None) -> list[str] | None:
    """The decisions to show where there are many; None for all."""
    if len(live.study.space.short_names) <= MAX_DECISIONS:
        return None
    return [each.path for each in _ranking(live, reward).decisions[:MAX_DECISIONS]] or None


VIEW = figure_view(
    '/decisions',
    'Decisions',
    'Which decisions matter, and which values are good.',
    Panel('importances', _importances, opens_trials=False),
    Panel(
        'parallel-coordinates',
        _parallel_coordinates,
        ('reward', 'diverged'),
        opens_trials=False,
    ),
    Panel('slices', _slices, ('reward', 'y_scale', 'diverged')),
    Panel('contour', _contour, ('reward', 'first', 'second')),
)
