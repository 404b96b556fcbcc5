"""Figures of the model of a study, and of several studies."""

from typing import Any

import numpy as np
import pyglove as pg
import pytest

import paxtune
from paxtune import plots
from paxtune.analysis.surrogate import fitted
from paxtune.config.budget import Budget
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from tests.factories.studies import ask
from tests.factories.toys import OBJECTIVES, search, toy
from trainer.symbolic.errors import UserError

SPACE = {'x': pg.floatv(-1.0, 1.0), 'y': pg.floatv(1e-3, 1.0, 'log'), 'k': pg.oneof(['a', 'b'])}


def value(x: float, y: float, k: str) -> float:
    return float((x - 0.3) ** 2 + 0.1 * np.log10(y) + (k == 'b'))


def tuned(num_trials: int = 24, **options: Any) -> Study:
    return paxtune.tune(
        value,
        space=SPACE,
        objective='minimize',
        num_trials=num_trials,
        algorithm='random',
        **options,
    )


@pytest.fixture(scope='module')
def study() -> Study:
    return tuned()


def best_of(study: Study) -> Trial:
    assert study.best is not None
    return study.best


def values_of(study: Study) -> list[float]:
    return [trial.rewards[0] for trial in study.trials]


def trace_of(figure: Any, name: str) -> Any:
    return next(trace for trace in figure.data if trace.name == name)


def test_several_studies_have_a_line_each(study: Study) -> None:
    shorter = tuned(5)
    with open_study(None, toy(search=search())) as empty:
        figure = plots.best_so_far({'<b>long</b>': study, 'short': shorter, 'empty': empty})
    assert [line.name for line in figure.data] == ['&lt;b&gt;long&lt;/b&gt;', 'short']
    assert len(figure.data[1].x) == 5


def test_best_so_far_is_that_of_each_study(study: Study) -> None:
    (line,) = plots.best_so_far({'one': study}).data
    assert list(line.y) == list(np.minimum.accumulate(values_of(study)))


def test_best_so_far_is_drawn_by_the_hours_since_the_first_trial(study: Study) -> None:
    (line,) = plots.best_so_far({'one': study}, x='hours').data
    ended = sorted(trial.completed for trial in study.trials if trial.completed)
    began = min(trial.created for trial in study.trials)
    assert list(line.x) == pytest.approx(
        [(each - began).total_seconds() / 3600 for each in ended], abs=1e-6
    )
    assert line.y[-1] == min(values_of(study))


def test_cross_validation_has_every_trial_and_its_interval(study: Study) -> None:
    figure = plots.cross_validation(study)
    points, model = trace_of(figure, 'trials'), fitted(study)
    assert model is not None
    assert list(points.x) == values_of(study)
    assert list(points.y) == list(model.cross_validate().predicted.mean)
    assert (points.error_y.array >= 0).all()
    assert (points.error_y.arrayminus >= 0).all()
    assert 'R² 1.00, 100% of 24 within' in figure.layout.title.text


def test_effects_have_a_panel_for_each_decision(study: Study) -> None:
    figure = plots.effects(study)
    assert figure.layout.title.text == f'Predictions around trial {best_of(study).id}'
    assert [figure.layout[axis].title.text for axis in ('xaxis', 'xaxis2', 'xaxis3')] == [
        'x',
        'k',
        'y',
    ]
    assert figure.layout.xaxis3.type == 'log'
    assert list(figure.layout.xaxis2.ticktext) == ['a', 'b']
    low, high, mean = figure.data[:3]
    assert (np.array(low.y) <= mean.y).all()
    assert (np.array(high.y) >= mean.y).all()
    lines = [shape.x0 for shape in figure.layout.shapes]
    assert lines[0] == best_of(study).decisions['x']
    with pytest.raises(UserError, match='There are x, y, k'):
        plots.effects(study, decisions=['width'])


def test_a_surface_has_the_named_decisions(study: Study) -> None:
    figure = plots.surface(study, 'y', 'x')
    assert [trace.type for trace in figure.data[::2]] == ['contour', 'contour']
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ('y', 'x')
    assert figure.data[1].x[0] == best_of(study).decisions['y']
    assert plots.surface(study, y='k').data[0].type == 'heatmap'
    assert plots.surface(study).layout.xaxis.title.text == 'x'


def test_sensitivity_ranks_decisions_with_their_trend(study: Study) -> None:
    figure = plots.sensitivity(study)
    assert figure.layout.yaxis.ticktext[-1] == 'k'
    assert 'x ↓' in figure.layout.yaxis.ticktext
    total, first = (trace_of(figure, name).x for name in ('total', 'first order'))
    assert sum(first) == pytest.approx(1.0, abs=0.2)
    assert sum(total) == pytest.approx(1.0, abs=0.2)


def test_hypervolume_grows_with_the_front() -> None:
    with open_study(None, toy(search=search(objective=OBJECTIVES, budget=Budget(6)))) as several:
        for loss, accuracy in ((1.0, 0.5), (2.0, 0.3), (0.5, 0.4)):
            several.tell(ask(several), {'loss': loss, 'accuracy': accuracy})
        figure = plots.hypervolume(several, {'loss': 2.0, 'accuracy': 0.0})
    assert figure.layout.title.text == 'Hypervolume beyond loss 2, accuracy 0'
    assert list(figure.data[0].y) == pytest.approx([0.5, 0.5, 0.7])
