"""Each figure of `paxtune.plots`, of real small studies in memory."""

import functools
import json
from typing import Any

import numpy as np
import pyglove as pg
import pytest

import paxtune
from paxtune import plots
from paxtune.config.budget import Budget
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.factories.studies import ask, finish, run_all_kinds
from tests.factories.toys import OBJECTIVES, search, toy
from trainer.symbolic.errors import UserError

FIGURES = [getattr(plots, name) for name in plots.__all__]
EVIL = '<script>alert(1)</script><a href="javascript:x">'


@pytest.fixture(scope='module')
def study() -> Study:
    """Eleven trials: completed, stopped, infeasible, running, paused, and waiting ones."""
    made = open_study(None, toy(search=search(budget=Budget(30))))
    run_all_kinds(made)
    for _ in range(5):
        finish(ask(made))
    paused = ask(made)
    paused.report(10, {'loss': 2.0, 'accuracy': 0.3})
    paused.pause(10, 'of the lower half')
    made.add({'rate': 0.05})
    return made


def names_of(figure: Any) -> list[str]:
    return [trace.name for trace in figure.data]


def trace_of(figure: Any, name: str) -> Any:
    return next(trace for trace in figure.data if trace.name == name)


def rewards_of(study: Study) -> dict[int, float]:
    return {trial.id: trial.rewards[0] for trial in study.trials if trial.rewards}


@pytest.mark.parametrize('draw', FIGURES, ids=plots.__all__)
def test_a_figure_is_valid_json_without_changing_the_study(draw, study):
    before = [trial.record for trial in study.trials]
    figure = draw(study)
    assert json.loads(figure.to_json(), parse_constant=pytest.fail)['layout']
    assert [trial.record for trial in study.trials] == before


@pytest.mark.parametrize('draw', FIGURES, ids=plots.__all__)
@pytest.mark.parametrize('objective', [search().objective, None, OBJECTIVES])
def test_a_figure_of_an_empty_study_is_one_line_of_text(draw, objective):
    with open_study(None, toy(search=search(objective=objective))) as empty:
        figure = draw(empty)
    assert not figure.data
    (line,) = figure.layout.annotations
    assert line.text.endswith('.')


@pytest.mark.parametrize('draw', FIGURES, ids=plots.__all__)
def test_a_figure_shows_trials_that_have_not_reported(draw):
    with open_study(None, toy(search=search())) as begun:
        ask(begun)
        ask(begun).fail('no memory')
        draw(begun)


@pytest.mark.parametrize('draw', FIGURES, ids=plots.__all__)
def test_a_figure_of_several_rewards_shows_the_first_or_the_named_one(draw):
    with open_study(None, toy(search=search(objective=OBJECTIVES, budget=Budget(9)))) as several:
        run_all_kinds(several)
        finish(ask(several))
        assert draw(several).layout
        if draw in (plots.timeline, plots.hypervolume):
            return
        named = functools.partial(draw, several, **{_reward_argument(draw): 'accuracy'})
        assert named() is not None
        with pytest.raises(UserError, match=r'losss|name both axes'):
            draw(several, **{_reward_argument(draw): 'losss'})


def _reward_argument(draw: Any) -> str:
    return 'x' if draw is plots.pareto_front else 'reward'


def test_history_has_every_final_value_and_the_best_so_far(study):
    figure = plots.history(study)
    points = {
        int(x): y
        for name in ('completed', 'stopped')
        for x, y in zip(trace_of(figure, name).x, trace_of(figure, name).y, strict=True)
    }
    assert points == rewards_of(study)
    best = trace_of(figure, 'best so far').y
    assert list(best) == sorted(best, reverse=True)
    assert best[-1] == study.best.reward
    assert list(trace_of(figure, 'infeasible').x) == [3]


def test_history_takes_a_metric(study):
    figure = plots.history(study, 'accuracy')
    assert trace_of(figure, 'completed').y[0] == study.trial(1).metrics['accuracy']


def test_history_keeps_the_scale_of_negative_values_linear():
    space = {'x': pg.floatv(-1.0, 1.0)}
    found = paxtune.tune(lambda x: x, space=space, num_trials=6, objective='minimize')
    assert plots.history(found).layout.yaxis.type == 'linear'


def test_curves_have_every_measurement_and_the_ends_of_unfinished_trials(study):
    figure = plots.curves(study)
    lines = [trace for trace in figure.data if trace.customdata is not None and trace.name]
    drawn = sorted(
        (int(trial), int(x), y)
        for trace in lines
        if 'lines' in trace.mode and not trace.name.startswith('best')
        for trial, x, y in zip(trace.customdata, trace.x, trace.y, strict=True)
        if not np.isnan(x)
    )
    measured = sorted(
        (trial.id, each.step, each.reward) for trial in study.trials for each in trial.measurements
    )
    assert drawn == measured
    symbols = {trace.marker.symbol for trace in figure.data if trace.mode == 'markers'}
    assert symbols == {'x', 'square', 'circle'}
    assert f'best: trial {study.best.id}' in names_of(figure)


def test_curves_draw_the_rungs_of_the_scheduler():
    scheduler = paxtune.Asha(min_resource=10, max_resource=40, reduction_factor=2)
    with open_study(None, toy(search=search(scheduler=scheduler, budget=Budget(4)))) as ranked:
        for number in range(4):
            trial = ask(ranked)
            for step in (10, 20, 40):
                trial.report(step, {'loss': 1.0 + number / step})
            trial.complete()
        lines = plots.curves(ranked).layout.shapes
        correlations = plots.rank_correlations(ranked)
    assert [line.x0 for line in lines] == [10, 20]
    assert list(trace_of(correlations, 'rungs, with the end').x) == [10, 20]
    assert list(trace_of(correlations, 'rungs, with the end').y) == pytest.approx([1.0, 1.0])


def test_rank_correlations_compare_steps_with_the_end():
    with open_study(None, toy(search=search(budget=Budget(4)))) as crossing:
        for number in range(4):
            trial = ask(crossing)
            for step, loss in ((10, -number), (20, number), (30, number)):
                trial.report(step, {'loss': float(loss)})
            trial.complete()
        (line,) = plots.rank_correlations(crossing).data
    assert list(line.x) == [10, 20]
    assert list(line.y) == pytest.approx([-1.0, 1.0])
    assert list(line.customdata) == [4, 4]


def test_parallel_coordinates_have_an_axis_for_each_decision(study):
    (lines,) = plots.parallel_coordinates(study).data
    labels = [dimension.label for dimension in lines.dimensions]
    assert labels == [*dict.fromkeys(study.space.short_names.values()), 'loss']
    rewards = rewards_of(study)
    rates = [np.log10(study.trial(number).decisions['rate']) for number in rewards]
    assert list(lines.dimensions[0]['values']) == pytest.approx(rates)
    heads = next(each for each in lines.dimensions if each.label.endswith('heads'))
    is_active = ['layer.heads' in study.trial(number).decisions for number in rewards]
    assert [value >= 0 for value in heads['values']] == is_active
    assert list(heads.ticktext) == ['inactive', '1', '2', '4']


def test_parallel_coordinates_take_decisions(study):
    (lines,) = plots.parallel_coordinates(study, decisions=['layer', 'rate']).data
    assert [dimension.label for dimension in lines.dimensions] == ['layer', 'rate', 'loss']
    with pytest.raises(UserError, match='Did you mean rate'):
        plots.parallel_coordinates(study, decisions=['rat'])


def test_slices_leave_inactive_decisions_out(study):
    figure = plots.slices(study, decisions=['rate', 'layer.heads'])
    rewards = rewards_of(study)
    heads = {
        number: study.trial(number).decisions['layer.heads']
        for number in rewards
        if 'layer.heads' in study.trial(number).decisions
    }
    assert [len(trace.x) for trace in figure.data] == [len(rewards), len(heads)]
    assert [int(each) for each in figure.data[1].customdata] == list(heads)
    labels = [figure.layout.xaxis2.ticktext[int(x)] for x in figure.data[1].x]
    assert labels == [str(value) for value in heads.values()]
    assert figure.layout.xaxis.type == 'log'


def test_a_contour_has_the_mean_of_each_cell(study):
    figure = plots.contour(study, 'rate', 'layer')
    surface, points = figure.data
    rewards = rewards_of(study)
    assert surface.type == 'heatmap'
    assert {int(each) for each, _ in points.customdata} == set(rewards)
    assert np.nanmin(surface.z) >= min(rewards.values())
    assert np.nanmax(surface.z) <= max(rewards.values())
    assert list(figure.layout.yaxis.ticktext) == ['Block', 'Dense', 'Dense(width=16)']


def test_a_contour_takes_the_most_important_decisions():
    space = {'dull': pg.floatv(0.0, 1.0), 'x': pg.floatv(0.0, 1.0), 'y': pg.floatv(0.0, 1.0)}
    found = paxtune.tune(
        lambda dull, x, y: 3 * x + y,
        space=space,
        num_trials=30,
        algorithm='random',
        objective='minimize',
    )
    figure = plots.contour(found)
    assert figure.data[0].type == 'contour'
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ('x', 'y')
    assert plots.contour(found, y='x').layout.xaxis.title.text == 'y'


def test_constant_decisions_and_rewards_are_drawn():
    with open_study(None, toy(search=search(budget=Budget(6)))) as constant:
        for _ in range(6):
            constant.add({'rate': 0.01, 'layer': 'Dense'})
            constant.tell(ask(constant), {'loss': 1.0, 'accuracy': 1.0})
        for draw in FIGURES:
            draw(constant).to_json()
        assert 'different' in plots.importances(constant).layout.annotations[0].text


def test_the_pareto_front_is_that_of_the_study():
    with open_study(None, toy(search=search(objective=OBJECTIVES, budget=Budget(6)))) as several:
        for loss, accuracy in ((1.0, 0.5), (0.5, 0.4), (2.0, 0.3), (0.4, 0.1)):
            several.tell(ask(several), {'loss': loss, 'accuracy': accuracy})
        front = trace_of(plots.pareto_front(several), 'front')
        assert {*front.customdata} == {trial.id for trial in several.pareto_front} == {1, 2, 4}


def test_the_timeline_has_every_attempt(study):
    figure = plots.timeline(study)
    drawn = [int(each) for trace in figure.data for each in trace.customdata[::4]]
    begun = [trial.id for trial in study.trials if trial.record.history]
    assert sorted(drawn) == begun
    assert {'completed', 'stopped', 'infeasible', 'running', 'paused'} == {*names_of(figure)}


def test_the_lineage_joins_forks_replicates_and_pauses(study):
    with open_study(None, toy(search=search(budget=Budget(9)))) as related:
        for _ in range(2):
            finish(ask(related))
        for _ in related.confirm(1, 2):
            finish(ask(related))
        related.retry(1)
        figure = plots.lineage(related)
        source = related.trial(3).lineage.replicate_of_here
    assert list(trace_of(figure, 'replicate').x[:2]) == [source, 3]
    assert list(trace_of(figure, 'retry').x[:2]) == [1, 4]
    pauses = trace_of(plots.lineage(study), 'pauses')
    assert 'paused at 10' in pauses.hovertext


def test_names_with_tags_are_escaped():
    space = {EVIL: pg.oneof([EVIL, 'other']), 'x': pg.floatv(0.0, 1.0)}

    with open_study(
        None,
        pg.Dict(space),
        search=search(objective=paxtune.MetricReward('minimize', EVIL), budget=Budget(9)),
    ) as evil:
        for number in range(6):
            trial = ask(evil)
            trial.report(1, {EVIL: float(number), 'num_params': 1.0})
            if number == 1:
                trial.stop(EVIL)
            elif number == 2:
                trial.fail(EVIL)
            else:
                trial.complete()
        for draw in FIGURES:
            text = json.dumps(json.loads(draw(evil).to_json()))
            assert '<script' not in text
            assert '<a ' not in text
        assert '&lt;script' in plots.slices(evil).to_json()
