"""Figures of the study page, without a browser."""

import concurrent.futures
import contextlib
import html
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import plotly.graph_objects as go
import pyglove as pg
import pytest
from flask.testing import FlaskClient

from paxtune import Budget, MetricReward, Objectives, Search
from paxtune.analysis.forest import fit, fit_elsewhere
from paxtune.page import choices
from paxtune.page.figures import FigureView, clicked_trial
from paxtune.page.links import Link
from paxtune.page.live import LiveStudy
from paxtune.page.views import VIEWS as ALL
from paxtune.page.views import overview
from paxtune.plots import svg
from paxtune.storage.open_study import open_study
from tests.factories.page_searches import HOST, SCRIPT, call, client, opened

VIEWS = {view.path: view for view in ALL if isinstance(view, FigureView)}
PANELS = {each.id: each for view in VIEWS.values() for each in view.panels}
PANELS |= {overview.HISTORY.id: overview.HISTORY}
FITTED = {'figure-importances', 'figure-contour'} | {
    panel.id for panel in PANELS.values() if panel.heading
}
"""Figures of a forest or a model, which a process of its own fits."""

LOSS = MetricReward('minimize', f'loss{SCRIPT}&lt;')
ACCURACY = MetricReward('maximize', 'accuracy')
SPACE = pg.Dict(
    rate=pg.floatv(1e-4, 1e-1, 'log'),
    kind=pg.oneof(['plain', SCRIPT]),
    **{'a<b>c</b>': pg.oneof([pg.Dict(momentum=pg.floatv(0.0, 1.0)), pg.Dict(size=1)])},
)


def fill(directory: Path, objective: Any, count: int = 8) -> None:
    """Makes a study whose third trial is infeasible, and whose last one runs."""
    with open_study(directory, SPACE, search=Search(objective, Budget(100))) as study:
        for number in range(1, count + 1):
            trial = study.ask()
            assert trial is not None
            if number == 3:
                study.tell(trial, infeasible=f'{SCRIPT} failed')
                continue
            for step in (1, 2):
                metrics = {LOSS.metric: 1.0 / number / step, 'accuracy': step / number}
                trial.report(step, metrics | {'size': float(number)})
            if number < count:
                study.tell(trial)


@pytest.fixture(scope='module')
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with one reward, conditional decisions and hostile names, which is only read."""
    directory = tmp_path_factory.mktemp('figures') / 'study'
    fill(directory, LOSS)
    return directory


@pytest.fixture
def study(filled: Path) -> Iterator[LiveStudy]:
    """The same, opened."""
    with contextlib.closing(opened(filled)) as study:
        yield study


def drawn(
    page: FlaskClient,
    name: str,
    chosen: Mapping[str, str | None] = {},
    known: str | None = None,
) -> dict[str, Any]:
    """Asks for a figure as the page does; returns what it gets for its two elements."""
    id_ = f'figure-{name}'
    search = f'?{urlencode({key: value for key, value in chosen.items() if value})}'
    given: list[dict[str, Any]] = [
        {'id': 'version', 'property': 'data', 'value': ''},
        {'id': 'url', 'property': 'search', 'value': search},
    ]
    states = [{'id': f'drawn-{name}', 'property': 'data', 'value': known}]
    if id_ not in PANELS:
        path = '/trial/1' if name == 'trial' else '/compare'
        states.insert(0, {'id': 'url', 'property': 'pathname', 'value': path})
    body = {
        'output': f'..{id_}.figure...drawn-{name}.data..',
        'outputs': [
            {'id': id_, 'property': 'figure'},
            {'id': f'drawn-{name}', 'property': 'data'},
        ],
        'inputs': given,
        'state': states,
        'changedPropIds': ['version.data'],
    }
    reply = page.post(
        '/_dash-update-component',
        base_url=HOST,
        data=json.dumps(body),
        content_type='application/json',
        headers={'Origin': HOST, 'Sec-Fetch-Site': 'same-origin'},
    )
    if reply.status_code == 204:  # There is nothing new.
        return {}
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.get_json()['response']
    return found


def figure_of(page: FlaskClient, name: str, **chosen: str | None) -> dict[str, Any]:
    found: dict[str, Any] = drawn(page, name, chosen)[f'figure-{name}']['figure']
    return found


def line_of(figure: dict[str, Any]) -> str:
    """The text of a figure without traces."""
    assert not figure['data']
    (note,) = figure['layout']['annotations']
    return html.unescape(note['text'])


@pytest.mark.parametrize(
    'id_',
    [
        pytest.param(id_, marks=pytest.mark.slow if id_ in FITTED else ())
        for id_ in [*PANELS, 'figure-trial']
    ],
)
def test_each_figure_shows_the_study_without_webgl(id_: str, study: LiveStudy) -> None:
    name = id_.removeprefix('figure-')
    figure = figure_of(client(study), name)
    if name == 'lineage':
        assert line_of(figure)
        return
    assert {trace['type'] for trace in figure['data']} <= {'scatter', 'bar', 'heatmap', 'contour'}
    text = json.dumps(figure)
    assert '<script' not in text and 'a<b>c' not in text


@pytest.mark.parametrize('name', [each.removeprefix('figure-') for each in PANELS])
@pytest.mark.parametrize('objective', [LOSS, None, Objectives([LOSS, ACCURACY])])
def test_each_figure_of_an_empty_study_is_a_line_of_text(
    name: str, objective: Any, tmp_path: Path
) -> None:
    fill(tmp_path, objective, count=0)
    with contextlib.closing(opened(tmp_path)) as empty:
        assert line_of(figure_of(client(empty), name)).endswith('.')


@pytest.mark.parametrize('path', VIEWS)
def test_each_view_has_its_figures_and_choices(path: str, study: LiveStudy) -> None:
    text = json.dumps(VIEWS[path].layout(study, Link()), default=_json)
    for panel in VIEWS[path].panels:
        if panel.heading:  # A click on its button gets it.
            assert f'"{panel.id}"' not in text
            clicks = {f'ask-{panel.name}.n_clicks': 1}
            asked = f'asked-{panel.name}.children'
            text += json.dumps(call(client(study), asked, clicks, {'url.search': ''}).json)
        assert f'"{panel.id}"' in text
        ids = [json.dumps(choices.element_id(name)) for name in panel.choices]
        assert all(id_ in text for id_ in ids), ids


def _json(component: Any) -> Any:
    return component.to_plotly_json()


def test_a_figure_takes_the_chosen_metric_and_axes(tmp_path: Path) -> None:
    fill(tmp_path, Objectives([LOSS, ACCURACY]))
    with contextlib.closing(opened(tmp_path)) as several:
        page = client(several)
        title = figure_of(page, 'history', reward='size')['layout']['yaxis']['title']['text']
        assert title == 'size'
        front = figure_of(page, 'pareto-front', x='size', y='accuracy')
        assert front['layout']['xaxis']['title']['text'] == 'size (less is better)'
        same = figure_of(page, 'pareto-front', x='size', y='+size')
        assert line_of(same) == 'Choose two different numbers.'
        contour = figure_of(page, 'contour', reward='accuracy', first='kind', second='rate')
        assert contour['layout']['xaxis']['title']['text'] == 'kind'
        unknown = line_of(figure_of(page, 'history', reward=SCRIPT))
        assert unknown.startswith(f'{SCRIPT}: there is no such reward or metric')


def test_an_address_selects_trials_hides_diverged_ones_and_sets_scales(study: LiveStudy) -> None:
    page = client(study)
    wanted = {'trials': '2,best', 'y_scale': 'log', 'x_scale': 'log', 'diverged': 'hidden'}
    figure = figure_of(page, 'history', **wanted)
    assert {figure['layout'][axis]['type'] for axis in ('xaxis', 'yaxis')} == {'log'}
    names = [trace.get('name') for trace in figure['data']]
    assert 'infeasible' in {t['name'] for t in figure_of(page, 'history')['data']}
    assert {'trial 2', 'trial 7'} <= {*names}
    assert not [t for t in figure['data'] if t.get('name') == 'infeasible' and len(t['x'])]
    curves = figure_of(page, 'curves', curves_over='size', trials='2')
    assert curves['layout']['xaxis']['title']['text'] == 'size'
    assert figure_of(page, 'history', history_over='time')['data']
    assert figure_of(page, 'trial', trials='2', curves_over='seconds')['data']
    compared = figure_of(page, 'compared', trials='2,best', curves_over='size')
    assert [trace['name'] for trace in compared['data']] == ['trial 2', 'trial 7']
    assert line_of(figure_of(page, 'compared')).startswith('Select trials')


@pytest.mark.parametrize(
    'odd',
    [{'trials': 'x'}, {'reward': 'nothing'}, {'curves_over': 'nothing'}, {'trials': '1' * 20}],
)
def test_an_odd_address_makes_a_figure_of_one_line(study: LiveStudy, odd: dict[str, str]) -> None:
    assert '\n' not in line_of(figure_of(client(study), 'curves', **odd))
    assert figure_of(client(study), 'curves', x_scale='odd', trials='99')['data']


def test_titles_fold_and_legends_are_below(tmp_path: Path) -> None:
    reward = MetricReward('minimize', 'eval/bits_per_byte_of_<b>the</b>_whole_set')
    space = pg.Dict({f'learning_rate_of_layer_{i}': pg.floatv(0.0, 1.0) for i in range(3)})
    with open_study(tmp_path, space, search=Search(reward, Budget(9))) as study:
        for _ in range(4):
            trial = study.ask()
            assert trial is not None
            trial.report(1, {reward.metric: 0.5})
            study.tell(trial)
    with contextlib.closing(opened(tmp_path)) as live:
        page = client(live)
        figure = figure_of(page, 'rank-correlations')
        if figure['data']:
            assert '<br>' in figure['layout']['title']['text']
        slices = figure_of(page, 'slices')['layout']
        for axis in ('xaxis', 'xaxis2', 'xaxis3'):
            lines = slices[axis]['title']['text'].split('<br>')
            assert max(map(len, lines)) <= 15, lines
        legend = figure_of(page, 'history')['layout']['legend']
        assert legend['orientation'] == 'h' and legend['y'] < 0


@pytest.mark.slow
def test_figures_of_the_model_take_chosen_decisions(study: LiveStudy) -> None:
    page = client(study)
    effect = figure_of(page, 'effects', decision='kind')
    assert effect['layout']['xaxis']['title']['text'] == 'kind'
    chosen = {'surface-x': 'kind', 'surface-y': 'rate'}
    surface = figure_of(page, 'surface', **chosen)['layout']
    assert [surface[axis]['title']['text'] for axis in ('xaxis', 'yaxis')] == ['kind', 'rate']


def test_problems_with_a_figure_of_the_model_are_text(study: LiveStudy) -> None:
    page = client(study)
    same = figure_of(page, 'surface', **{'surface-x': 'kind', 'surface-y': 'kind'})
    assert line_of(same) == 'Choose two different decisions.'
    with contextlib.closing(LiveStudy(study.where, ['nowhere'])) as lost:
        assert 'There is no study in nowhere' in line_of(figure_of(client(lost), 'effects'))


def test_a_slow_figure_delays_no_other_view(study: LiveStudy) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        began.set()
        assert may_end.wait(60)
        return 'slow'

    with concurrent.futures.ThreadPoolExecutor() as threads:
        waiting = threads.submit(study.computed, 'slow', slow)
        try:
            assert began.wait(60)
            assert study.version() and figure_of(client(study), 'history')['data']
            assert not waiting.done()
        finally:
            may_end.set()
        assert waiting.result() == 'slow'


def test_a_browser_gets_a_figure_once(study: LiveStudy) -> None:
    page = client(study)
    first = drawn(page, 'history')
    token = first['drawn-history']['data']
    assert first['figure-history']['figure']['data']
    assert drawn(page, 'history', known=token) == {}
    other = drawn(page, 'history', {'reward': 'size'}, token)
    # Another choice resets the zoom.
    one, two = (each['figure-history']['figure']['layout'] for each in (first, other))
    assert one['uirevision'] != two['uirevision']


def test_an_older_figure_is_drawn_again_later(tmp_path: Path) -> None:
    fill(tmp_path, LOSS, count=1)
    clock = [0.0]
    counts = iter(range(9))

    def slow() -> int:
        clock[0] += 1.0
        return next(counts)

    with contextlib.closing(opened(tmp_path, lambda: clock[0])) as changing:
        clock[0] = 10.0
        assert changing.computed('slow', lambda: -1) == -1  # The first one imports code.
        with open_study(tmp_path, SPACE, search=Search(LOSS, Budget(100))) as writer:
            writer.ask()
        clock[0] = 12.0
        assert changing.computed('slow', slow) == 0
        before = changing.version()
        with open_study(tmp_path, SPACE, search=Search(LOSS, Budget(100))) as writer:
            writer.ask()
        clock[0] = 15.0  # A computation of a second may come again after ten.
        assert changing.version() != before
        assert changing.computed('slow', slow) == 0
        waiting = changing.version()
        clock[0] = 23.0
        assert changing.version() != waiting
        assert changing.computed('slow', slow) == 1


def test_a_click_opens_the_trial_of_a_point() -> None:
    assert clicked_trial({'points': [{'customdata': 7}]}) == 7
    assert clicked_trial({'points': [{'customdata': [8, 0.5]}]}) == 8
    elsewhere: list[Any] = [None, {}, {'points': [{}]}]
    assert [clicked_trial(each) for each in elsewhere] == [None] * 3


def test_many_points_are_thinned_out_and_counted() -> None:
    count = 20_000
    trace = go.Scattergl(
        x=np.arange(count), y=np.ones(count), customdata=list(range(count)), mode='markers'
    )
    made = svg.without_webgl(go.Figure(trace, {'title': 'All'}))
    (points,) = made.data
    assert points.type == 'scatter' and len(points.x) == len(points.customdata) == svg.MAX_POINTS
    assert (points.x[0], points.x[-1]) == (0, count - 1)
    assert f'{svg.MAX_POINTS:,} of {count:,} points' in made.layout.title.text


@pytest.mark.slow
def test_a_forest_of_another_process_is_the_same() -> None:
    rng = np.random.default_rng(0)
    rows = rng.random((50, 3))
    here, there = (make(rows, rows[:, 0] + rows[:, 1] ** 2) for make in (fit, fit_elsewhere))
    assert np.array_equal(here.impurities, there.impurities)
    for one, other in zip(here.trees, there.trees, strict=True):
        assert np.array_equal(one.value, other.value) and np.array_equal(one.left, other.left)
