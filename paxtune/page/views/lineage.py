"""The view of relations between trials."""

from paxtune import plots
from paxtune.page.figures import Panel, figure_view, of_study

VIEW = figure_view(
    '/lineage',
    'Lineage',
    7,
    'Which trial comes from which: weights, decisions, replicates; pauses and promotions.',
    Panel('lineage', of_study(plots.lineage)),
)
