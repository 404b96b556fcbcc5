"""Scales, trials that stand out, and trials left out, of finished figures."""

import numpy as np
import plotly.graph_objects as go
import pyglove as pg
import pytest

from paxtune import Budget, MetricReward, Search, plots
from paxtune.analysis.trial_values import axis_for, diverged
from paxtune.plots import svg
from paxtune.plots.learning_curves import compared_curves
from paxtune.plots.restyle import PALE, SELECTED, restyled
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study


@pytest.fixture(scope='module')
def study() -> Study:
    """Six trials with three measurements each; the last one has diverged."""
    space = pg.Dict(x=pg.floatv(0.1, 1.0), kind=pg.oneof(['a', 'b']))
    made = open_study(None, space, search=Search(MetricReward('minimize', 'loss'), Budget(9)))
    for number in range(1, 7):
        trial = made.ask()
        assert trial is not None
        for step in (1, 2, 3):
            loss = 1e6 if number == 6 else number / 10 + 1 / step
            trial.report(step, {'loss': loss, 'cost': 10.0 * step})
        made.tell(trial)
    return made


def test_scales_change_axes_of_numbers_alone(study: Study) -> None:
    before = plots.slices(study)
    made = restyled(before, x_scale='log', y_scale='log')
    assert before.layout.xaxis.type == 'linear'
    choices = [axis for axis in made.select_xaxes() if axis.tickvals is not None]
    numbers = [axis for axis in made.select_xaxes() if axis.tickvals is None]
    assert [axis.type for axis in choices] == ['linear'] and numbers[0].type == 'log'
    assert {axis.type for axis in made.select_yaxes()} == {'log'}
    times = restyled(plots.history(study, over='time'), x_scale='log')
    assert times.layout.xaxis.type != 'log'


def test_points_that_a_logarithmic_scale_cannot_show_are_counted() -> None:
    figure = go.Figure(go.Scatter(x=[0, 1, 2], y=[-1, 0, 3]), {'title': 'Points'})
    title = restyled(figure, y_scale='log').layout.title.text
    assert title == 'Points <i>(2 points at or below 0 cannot be shown)</i>'
    below = go.Figure(go.Scatter(x=[1], y=[-1]))
    assert restyled(below, y_scale='log').layout.yaxis.type is None


def test_trials_stand_out_in_each_figure_of_trials(study: Study) -> None:
    for plot in (plots.history, plots.curves, plots.slices):
        made = restyled(plot(study), trials=[2, 3])
        there = [trace for trace in made.data if trace.meta == SELECTED]
        assert {trace.name for trace in there} == {'trial 2', 'trial 3'}, plot
        assert all({*np.ravel(trace.customdata)} <= {2, 3} for trace in there)
        assert PALE in {trace.opacity for trace in made.data}
    (lines,) = restyled(plots.parallel_coordinates(study), trials=[2]).data
    assert lines.dimensions[0].label == 'trial'
    drawn = svg.without_webgl(go.Figure(lines)).data
    assert drawn[-1].line.width == 3 and {*drawn[-1].customdata} == {2}


def test_hidden_trials_are_in_no_trace(study: Study) -> None:
    bad = diverged(axis_for(study, None), study.trials)
    assert bad == {6}
    for plot in (plots.history, plots.curves, plots.slices, plots.parallel_coordinates):
        made = restyled(plot(study), hidden=bad)
        ids = [trace.customdata for trace in made.data if trace.customdata is not None]
        assert 6 not in np.concatenate([np.ravel(each) for each in ids]), plot


def test_curves_and_history_have_other_horizontal_axes(study: Study) -> None:
    assert list(plots.curves(study, over='cost').data[0].x[:3]) == [10, 20, 30]
    assert plots.curves(study, over='seconds').layout.xaxis.title.text == 'seconds'
    history = plots.history(study, over='cost')
    assert list(history.data[0].x) == [30.0 * n for n in range(1, 7)]
    assert history.layout.xaxis.title.text == 'cost of all trials'
    for plot in (plots.curves, plots.history):
        empty = plot(study, over='nothing')
        assert not empty.data and 'measured nothing' in empty.layout.annotations[0].text


def test_compared_curves_have_a_color_each(study: Study) -> None:
    made = compared_curves(study, [2, 5], over='cost')
    assert [trace.name for trace in made.data] == ['trial 2', 'trial 5']
    assert len({trace.line.color for trace in made.data}) == 2
    assert list(made.data[1].x[:3]) == [10, 20, 30] and set(made.data[1].customdata) == {5}
    empty = compared_curves(study, [2], over='nothing')
    assert empty.layout.annotations[0].text == 'None of these trials has measured nothing yet.'


def test_selected_points_survive_thinning() -> None:
    count = 20_000
    points = go.Scattergl(
        x=np.arange(count), y=np.ones(count), customdata=np.arange(count), mode='markers'
    )
    made = svg.without_webgl(restyled(go.Figure(points), trials=[7, 8]))
    assert [list(trace.customdata) for trace in made.data if trace.meta == SELECTED] == [[7], [8]]
