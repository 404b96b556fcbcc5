"""The view of the model of a study: figures that take seconds, each drawn once it is asked for."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paxtune.analysis.surrogate import MIN_TRIALS
from paxtune.page.commands import FIGURES, drawn_elsewhere
from paxtune.page.figures import Chosen, Panel, figure_view
from paxtune.page.live import LiveStudy
from paxtune.study.record import Status
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go


def _draw(live: LiveStudy, name: str, settings: dict[str, Any]) -> 'go.Figure':
    completed = sum(each.status is Status.COMPLETED for each in live.snapshot().trials)
    if completed < MIN_TRIALS:  # There is no model, which the figure says.
        return FIGURES[name](live.study, **settings)
    return drawn_elsewhere(live.location, name, settings)


def _of_reward(name: str) -> Callable[[LiveStudy, Chosen], 'go.Figure']:
    return lambda live, chosen: _draw(live, name, {'reward': chosen['reward']})


def _effects(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    path = chosen['decision']
    decisions = None if path is None else [path]
    return _draw(live, 'effects', {'reward': chosen['reward'], 'decisions': decisions})


def _surface(live: LiveStudy, chosen: Chosen) -> 'go.Figure':
    x, y = chosen['surface-x'], chosen['surface-y']
    if x is not None and x == y:
        raise UserError('Choose two different decisions.')
    return _draw(live, 'surface', {'x': x, 'y': y, 'reward': chosen['reward']})


VIEW = figure_view(
    '/model',
    'Model',
    'The Gaussian process of the default algorithm, fitted to at most 256 trials: its errors and '
    'its predictions. Each figure takes some seconds.',
    Panel(
        'cross-validation',
        _of_reward('cross_validation'),
        heading='Cross-validation',
        about='Final values over predictions by a model that has not seen the trial.',
    ),
    Panel(
        'effects',
        _effects,
        ('reward', 'decision'),
        opens_trials=False,
        heading='Effects',
        about='Predictions along decisions of the best trial, with intervals of 95 %.',
    ),
    Panel(
        'surface',
        _surface,
        ('reward', 'surface-x', 'surface-y'),
        opens_trials=False,
        heading='Surface',
        about='Predictions over two decisions of the best trial, and their uncertainty.',
    ),
    Panel(
        'sensitivity',
        _of_reward('sensitivity'),
        opens_trials=False,
        heading='Sensitivity',
        about='Sobol indices: shares of the variance that decisions explain.',
    ),
)
