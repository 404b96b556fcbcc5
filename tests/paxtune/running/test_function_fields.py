"""Spaces, objectives, metrics and steps of functions, as users of other tools write them."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import jax.numpy as jnp
import numpy as np
import pyglove as pg
import pytest
from scipy import stats

from paxtune.api import tune
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import PopulationBasedTraining
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.factories.function_studies import OBJECTIVE, SPACE, search
from tests.factories.studies import states
from trainer.symbolic.errors import UserError

LOSS, ACCURACY = MetricReward('minimize', 'loss'), MetricReward('maximize', 'accuracy')


def run(function: Any, **fields: Any) -> Study:
    return tune(function, **{'space': SPACE, 'num_trials': 1, 'objective': 'minimize', **fields})


def reason_of(function: Any) -> str:
    with run(function) as study:
        assert study.trials[0].is_failed
        return str(study.trials[0].reason)


@pytest.mark.parametrize(
    ('space', 'words'),
    [
        ({'x': [1, 2, 3]}, r'x is \[1, 2, 3\]: to search it, write pg\.oneof\(\[1, 2, 3\]\)'),
        ({'x': (0.0, 1.0)}, r'write pg\.floatv\(0\.0, 1\.0\)'),
        ({'x': (1, 8)}, r'write paxtune\.intv\(1, 8\)'),
        ({'x': range(1, 5)}, r'write paxtune\.intv\(1, 4\)'),
        ({'optimizer': {'rate': [0.1, 0.2]}}, r'optimizer\.rate is .* pg\.oneof\(\[0\.1, 0\.2\]\)'),
        ({'x': np.arange(2)}, r'to search it, write pg\.oneof\(\[0, 1\]\)'),
        ({'x': {1}}, r'x is \{1\}: .* pg\.oneof\(\[1\]\)'),
        ({'x': 1}, r'Write one as pg\.oneof\(\[…\]\)'),
        ({}, 'space holds no decision'),
        ({'x': {'_type': 'choice', '_value': [1, 2]}}, r"x has the key '_type'.*pg\.oneof\(\[1, 2"),
        ({'_type': pg.oneof([1, 2])}, "the key '_type', which stands for classes"),
        ({'x': pg.oneof([1, 2]), 'y': [{'_type': 'a'}]}, r"y\[0\] has the key '_type'"),
        ({'x': {'y': [np.eye(2)]}}, r'x\.y is a list that begins with an array: give array\.tol'),
        ({None: pg.oneof([1, 2])}, 'the name None in it must be a text'),
        ({'x': {(1, 2): pg.oneof([1, 2])}}, r'the name \(1, 2\) in x must be a text'),
    ],
)
def test_a_space_without_decisions_says_how_they_are_written(space: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(lambda values: 1.0, space=space)


@pytest.mark.parametrize(
    ('value', 'words'),
    [
        ((0.0, 1.0), r'x is \(0\.0, 1\.0\): to search it, write pg\.floatv\(0\.0, 1\.0\)'),
        ((np.float32(0.5), 1), r'write pg\.floatv\(0\.5, 1\)'),
        (range(3), r'x is range\(0, 3\): to search it, write paxtune\.intv\(0, 2\)'),
        (range(0, 9, 4), r'write pg\.oneof\(\[0, 4, 8\]\)'),
        ([1, 2], r'write pg\.oneof\(\[1, 2\]\)'),
        (('adam', 'sgd', 'lion'), r"write pg\.oneof\(\['adam', 'sgd', 'lion'\]\)"),
        (np.linspace(0, 1, 1000), r'x is a ndarray: to search it, write pg\.oneof\(\[…\]\)'),
        (jnp.arange(2), r'write pg\.oneof\(\[0, 1\]\)'),
        (
            vars(stats)['uniform'](0, 1),
            r'write pg\.floatv\(low, high\), paxtune\.intv\(low, high\) or pg',
        ),
        (iter([1, 2]), r'x is a list_iterator: to search it, write pg\.oneof\(\[…\]\)'),
        ({'a': 1}.keys(), r'write pg\.oneof\(\[…\]\)'),
        ({'y': {3, 4}}, r'x\.y is \{3, 4\}: to search it'),
        ([pg.oneof([1, 2]), {'y': [3, 4]}], r'x\[1\]\.y is \[3, 4\]: to search it'),
        ({'min': 0.0, 'max': 1.0, 'distribution': 'uniform'}, r'write pg\.floatv\(0\.0, 1\.0\)'),
    ],
)
def test_values_that_are_decisions_elsewhere_are_no_constants(value: Any, words: str) -> None:
    with pytest.raises(UserError, match=f'^space: .*{words}.*put it into the function$'):
        run(lambda values: 1.0, space={'rate': pg.floatv(0.0, 1.0), 'x': value})


def test_a_constant_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(UserError, match=r'^space: x\.y cannot be copied \(.*lock.*\): put it into'):
        run(lambda values: 1.0, space={'rate': pg.floatv(0.0, 1.0), 'x': {'y': Lock()}})


def test_constants_that_are_no_decisions_elsewhere_stay_in_a_space() -> None:
    given: dict[str, Any] = {
        'number': np.int64(3),
        'name': 'adam',
        'nothing': None,
        'empty': [],
        'layers': [pg.oneof([8, 16]), [3, 4], pg.oneof([1, 2])],
        'kind': pg.oneof([[1, 2]]),
        'function': math.sin,
    }
    with run(lambda values: values.number, space=given) as study:
        assert study.trials[0].reward == 3.0
        assert study.trials[0].materialize().kind == [1, 2]


@pytest.mark.parametrize(
    ('objective', 'words'),
    [
        ({'loss': 'minimize'}, "MetricReward('minimize', 'loss')"),
        (('minimize', 'loss'), "MetricReward('minimize', 'loss')"),
        (['loss', 'max'], "MetricReward('maximize', 'loss')"),
        ('loss', "MetricReward('minimize', 'loss')"),
        ('min', "'minimize'"),
        (3, "MetricReward('minimize', 'loss')"),
        (MetricReward, "MetricReward('minimize', 'loss')"),
        (
            ['minimize', 'maximize'],
            "Objectives([MetricReward('minimize', 'metric_1'), "
            "MetricReward('maximize', 'metric_2')])",
        ),
        (
            {'a': 'min', 'b': 'max'},
            "Objectives([MetricReward('minimize', 'a'), MetricReward('maximize', 'b')])",
        ),
        ([LOSS, ACCURACY], f'Objectives([{LOSS!r}, {ACCURACY!r}])'),
    ],
)
def test_an_objective_of_another_form_says_how_it_is_written(objective: Any, words: str) -> None:
    with pytest.raises(UserError, match="expected 'minimize', 'maximize' or a reward") as raised:
        run(lambda values: 1.0, objective=objective)
    assert str(raised.value).endswith(f': write {words}')


@pytest.mark.parametrize(
    ('candidates', 'words'),
    [
        ([math.sin, math.cos], r"a function \(sin\).*, such as 'sin'"),
        ([lambda: 1, lambda: 2], r'a function \(<lambda>\)'),
        ([int, float], r"a class \(int\).*, such as 'int'"),
        ([object(), 1], r'an object without JSON \(object\)'),
        ([{1, 2}, 1], r'an object without JSON \(set\)'),
        ([b'a', b'b'], r'an object without JSON \(bytes\)'),
    ],
)
def test_candidates_that_no_study_keeps_are_refused_before_anything_is_written(
    candidates: Any, words: str, tmp_path: Path
) -> None:
    space = {'f': pg.oneof(candidates)}
    with run(lambda f: 1.0, space=space) as study:
        assert states(study) == ['COMPLETED']
    with pytest.raises(UserError, match=rf'^space: f\.candidates\[0\] is {words}'):
        run(lambda f: 1.0, space=space, job_log_dir=tmp_path / 'study')
    assert not (tmp_path / 'study').exists()


@pytest.mark.parametrize(
    'value', [None, 'abc', '0.75', b'1', [1], True, np.bool_(True), 10**400, 1j]
)
def test_a_metric_that_is_no_number_is_named(value: Any) -> None:
    reason = reason_of(lambda values: {'objective': 0.1, 'note': value})
    assert reason.startswith('the metric note is ')
    assert "trial.set_attribute('note', …)" in reason and f'{Path(__file__).name}:' in reason
    assert 'must return a number or metrics by name' in reason_of(lambda values: value)
    with open_study(None, SPACE, search=search(objective=OBJECTIVE)) as study:
        trial = study.ask()
        assert trial is not None
        with pytest.raises(UserError, match='the metric note is'):
            trial.report(1, {'objective': 0.1, 'note': value})
        if value is not None:
            with pytest.raises(UserError, match='the metric objective is'):
                study.tell(trial, value)
        with pytest.raises(UserError, match='the metric objective is'):
            study.tell(trial, {'objective': value})
        study.tell(trial, {'objective': 0.5})


def test_nested_metrics_need_names_of_their_own() -> None:
    reason = reason_of(lambda values: {'objective': 1.0, 'eval': {'loss': 2.0}})
    assert 'give each of its numbers a name of its own, such as eval/loss' in reason


@pytest.mark.parametrize('start', [0, 1])
def test_steps_begin_at_0_or_1(start: int) -> None:
    def trains(values: Any) -> Iterator[Any]:
        for step in range(start, 3):
            yield step, {'objective': 3.0 - step}

    def reports(values: Any, trial: Any) -> None:
        for step in range(start, 3):
            trial.report(step, {'objective': 3.0 - step})

    for function in (trains, reports):
        with run(function) as study:
            assert [each.step for each in study.trials[0].measurements] == [*range(start, 3)]
            assert study.trials[0].reward == 1.0


def test_a_single_report_at_step_0_is_the_result() -> None:
    with run(lambda values, trial: trial.report(0, {'objective': 2.0}) and None) as study:
        assert study.trials[0].reward == 2.0


@pytest.mark.parametrize('step', [-1, 1.5, '1', True, None])
def test_a_step_is_an_integer_from_0(step: Any) -> None:
    assert 'whose step is an integer from 0' in reason_of(lambda values: iter([(step, 1.0)]))
    reported = reason_of(lambda values, trial: trial.report(step, {'objective': 1.0}))
    assert 'must be an integer of at least 0' in reported


def test_a_step_that_is_reported_again_warns(caplog: pytest.LogCaptureFixture) -> None:
    with open_study(None, SPACE, search=search(objective=OBJECTIVE)) as study:
        trial = study.ask()
        assert trial is not None
        trial.report(3, {'objective': 1.0})
        trial.report(3, {'objective': 1.0})
        assert not caplog.messages
        assert trial.report(3, {'objective': 5.0}).metrics == {'objective': 1.0}
        assert 'Trial 1 reports step 3 again. Its first metrics stay' in caplog.text


def test_a_trial_that_goes_on_measures_earlier_steps_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with open_study(None, SPACE, search=search(objective=OBJECTIVE)) as study:
        for value in (1.0, 2.0):
            trial = study.ask()
            assert trial is not None and trial.id == 1
            for step in (1, 2, 3):
                trial.report(step, {'objective': value})
            trial.release('later')
        assert {each.reward for each in study.trial(1).measurements} == {1.0}
    assert not caplog.messages


def test_a_result_comes_after_steps_in_any_order() -> None:
    def reports(values: Any, trial: Any) -> float:
        for step in (10, 5):
            trial.report(step, {'objective': 3.0})
        return 1.0

    with run(reports) as study:
        assert study.trials[0].reward == 1.0


def test_a_generator_that_yields_nothing_says_so() -> None:
    def empty(values: Any) -> Iterator[float]:
        yield from ()

    place = f'{Path(__file__).name}:{empty.__code__.co_firstlineno}'
    reason = reason_of(empty)
    assert 'the function yielded nothing' in reason and place in reason


@pytest.mark.parametrize('gives', [dict, lambda: iter([{}]), lambda: iter([(1, {}), (2, {})])])
def test_a_function_without_a_metric_says_so(gives: Any) -> None:
    assert 'the function gave no metric' in reason_of(lambda values: gives())


@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_trials_that_all_diverge_warn(value: float, caplog: pytest.LogCaptureFixture) -> None:
    with run(lambda values: value, num_trials=3):
        assert f'No trial was completed. 3 × the reward is {value}' in caplog.text


def test_a_population_that_diverges_after_a_generation_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def diverges(values: Any) -> Iterator[float]:
        yield from (1.0, 1.0, math.nan)

    population = PopulationBasedTraining(population_size=2, interval=2)
    space = {'x': pg.floatv(0.0, 1.0)}
    with run(diverges, num_trials=6, scheduler=population, space=space) as study:
        assert any(trial.rewards for trial in study.trials)
        assert study.best is None
    assert 'No trial was completed. 4 × the reward is nan' in caplog.text


def test_trials_that_are_only_measured_warn_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def measures(x: int, trial: Any) -> dict[str, float]:
        return {'loss': 1.0 / (trial.id - 1)}

    with open_study(None, SPACE, search=search(objective=None)) as study:
        tune(measures, num_trials=2, study=study)
        assert states(study) == ['INFEASIBLE', 'COMPLETED']
    assert not caplog.messages


def test_errors_that_differ_in_an_address_are_the_same() -> None:
    def fails(values: Any) -> Mapping[str, float]:
        raise ValueError(f'no such thing: {object()!r}')

    with pytest.raises(Exception, match='trials 1, 2 and 3 all raised the same error'):
        run(fails, num_trials=9)
