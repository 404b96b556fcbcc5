"""The view of the attempts of workers."""

from paxtune import plots
from paxtune.page.figures import Panel, figure_view, of_study

VIEW = figure_view(
    '/workers',
    'Workers',
    6,
    'The attempts of each worker over time, by how they ended.',
    Panel('timeline', of_study(plots.timeline), ()),
)
