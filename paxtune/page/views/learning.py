"""The view of learning curves."""

from paxtune import plots
from paxtune.page.figures import Panel, figure_view, of_study

VIEW = figure_view(
    '/learning',
    'Learning',
    2,
    'A cross ends the curve of a trial that was stopped early, a square the curve of a paused one; '
    'dotted lines are rungs.',
    Panel('curves', of_study(plots.curves)),
    Panel('rank-correlations', of_study(plots.rank_correlations), opens_trials=False),
    Panel('best-so-far', of_study(plots.best_so_far), opens_trials=False),
)
