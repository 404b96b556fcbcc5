"""The hypervolume of a study over its trials."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paxtune.analysis.hypervolume import hypervolume_history
from paxtune.analysis.trial_values import NoValuesError
from paxtune.plots import layout

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.study.study_view import StudyView


@layout.or_text
def hypervolume(study: 'StudyView', reference: Mapping[str, float] | None = None) -> 'go.Figure':
    """Draws the volume that the Pareto front dominates after each completed trial.

    Args:
        study: a study of two or more rewards.
        reference: the value of each reward, by its label, beyond which a trial counts. By default
            the worst value of a completed trial, and a tenth of the span of all values beyond it.

    Raises:
        UserError: the reference does not name exactly the rewards.
    """
    if len(study.rewards) < 2:
        raise NoValuesError('A hypervolume needs two or more rewards.')
    found = hypervolume_history(study, reference)
    if not len(found.volumes):
        raise NoValuesError('No trial was completed yet.')
    point = ', '.join(
        f'{layout.text(name)} {layout.number(value)}'
        for name, value in zip(found.rewards, found.reference, strict=True)
    )
    drawn = layout.figure(f'Hypervolume beyond {point}')
    ids = [trial.id for trial in found.trials]
    drawn.add_trace(
        layout.scatter(
            len(ids),
            x=ids,
            y=found.volumes,
            mode='lines',
            line={'shape': 'hv', 'color': layout.BEST},
            hovertemplate='trial %{x}: %{y:.6g}<extra></extra>',
        )
    )
    drawn.update_xaxes(title='trial')
    drawn.update_yaxes(title='hypervolume', rangemode='tozero')
    return drawn
