"""The views of the page."""

from paxtune.page.views import compare, decisions, figures, model, overview, trial, trials

VIEWS = (
    overview.VIEW,
    trials.VIEW,
    figures.LEARNING,
    decisions.VIEW,
    model.VIEW,
    figures.TRADE_OFF,
    figures.WORKERS,
    figures.LINEAGE,
    compare.VIEW,
    trial.VIEW,
)
"""All views, in the order of the navigation."""
