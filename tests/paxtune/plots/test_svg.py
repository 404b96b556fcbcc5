"""Figures in SVG, in the traces of plotly's small bundle."""

import numpy as np
import plotly.graph_objects as go
import pytest

from paxtune import plots
from paxtune.config.budget import Budget
from paxtune.plots.svg import MAX_POINTS, without_webgl
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.factories.studies import ask, finish
from tests.factories.toys import search, toy

BUNDLE = {'bar', 'contour', 'heatmap', 'scatter'}


@pytest.fixture(scope='module')
def study() -> Study:
    made = open_study(None, toy(search=search(budget=Budget(30))))
    for _ in range(8):
        finish(ask(made))
    return made


@pytest.mark.parametrize('name', plots.__all__)
def test_svg_figures_have_traces_of_the_bundle(name: str, study: Study) -> None:
    figure = without_webgl(getattr(plots, name)(study))
    assert {trace.type for trace in figure.data} <= BUNDLE


def test_svg_parallel_coordinates_have_a_line_for_each_trial(study: Study) -> None:
    before = plots.parallel_coordinates(study)
    figure = without_webgl(before)
    (source,) = before.data
    count = len(source.dimensions[0]['values'])
    lines = [
        y for trace in figure.data for y in np.split(np.array(trace.y, float), count_of(trace))
    ]
    assert len(lines) == count
    low, high = source.dimensions[0].range
    expected = sorted((np.asarray(source.dimensions[0]['values']) - low) / (high - low))
    assert sorted(line[0] for line in lines) == pytest.approx(expected)
    texts = {each.text for each in figure.layout.annotations}
    assert {axis.label for axis in source.dimensions} <= texts


def count_of(trace: go.Scatter) -> int:
    return int(np.isnan(np.array(trace.y, float)).sum())


def test_svg_webgl_becomes_svg_with_seven_digits() -> None:
    y = np.random.default_rng(0).random(MAX_POINTS)
    (trace,) = without_webgl(go.Figure(go.Scattergl(y=y, mode='markers'))).data
    assert trace.type == 'scatter'
    assert np.asarray(trace.y).dtype == np.float32
    assert np.asarray(trace.y) == pytest.approx(y, rel=1e-6)
    (huge,) = without_webgl(go.Figure(go.Scatter(y=y * 1e300))).data
    assert np.asarray(huge.y) == pytest.approx(y * 1e300)
