"""Figures of studies, as `plotly.graph_objects.Figure`.

Each function takes a study, as `paxtune.load_study` returns it, and changes nothing. `reward` is a
reward by its label, or a metric; the first reward by default. `decisions`, `x` and `y` are paths or
short names; the most important ones by default. A function raises `UserError` where the study has
no such reward, metric or decision. Without trials, a figure is one line of text.

The numbers of a figure are computed in `paxtune.analysis`; here they are only drawn.

Example:
    >>> import paxtune, pyglove as pg
    >>> space = {'x': pg.floatv(-1.0, 1.0)}
    >>> study = paxtune.tune(lambda x: x**2, space=space, objective='minimize', num_trials=8)
    >>> figure = paxtune.plots.history(study)
    >>> figure.layout.title.text
    'Optimization history'
"""

from paxtune.plots.decisions import contour as contour
from paxtune.plots.decisions import importances as importances
from paxtune.plots.decisions import parallel_coordinates as parallel_coordinates
from paxtune.plots.decisions import slices as slices
from paxtune.plots.learning_curves import curves as curves
from paxtune.plots.learning_curves import rank_correlations as rank_correlations
from paxtune.plots.model import cross_validation as cross_validation
from paxtune.plots.model import effects as effects
from paxtune.plots.model import sensitivity as sensitivity
from paxtune.plots.model import surface as surface
from paxtune.plots.pareto import hypervolume as hypervolume
from paxtune.plots.pareto import pareto_front as pareto_front
from paxtune.plots.relations import lineage as lineage
from paxtune.plots.relations import timeline as timeline
from paxtune.plots.trial_history import best_so_far as best_so_far
from paxtune.plots.trial_history import history as history

__all__ = [
    'best_so_far',
    'contour',
    'cross_validation',
    'curves',
    'effects',
    'history',
    'hypervolume',
    'importances',
    'lineage',
    'parallel_coordinates',
    'pareto_front',
    'rank_correlations',
    'sensitivity',
    'slices',
    'surface',
    'timeline',
]
