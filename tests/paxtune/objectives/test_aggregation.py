import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.objectives.aggregation import (
    BestStep,
    LastStep,
    MeanOfSteps,
    NothingMeasuredError,
    final_metrics,
)
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import Metric, MissingMetricError
from paxtune.objectives.rewards import MetricReward
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

ALL = [
    LastStep(),
    MeanOfSteps(),
    MeanOfSteps(last_n=2),
    BestStep('loss', 'min'),
    BestStep(Metric('loss'), 'max'),
]
LOSS = MetricReward('minimize', 'loss')
every = pytest.mark.parametrize(
    'metric_aggregation', ALL, ids=['last', 'mean', 'mean_2', 'min', 'max']
)


def steps(*metrics: Mapping[str, float]) -> list[Measurement]:
    return [Measurement(10 * i, each) for i, each in enumerate(metrics, 1)]


def curve(name: str, *values: float) -> list[Measurement]:
    return steps(*({name: value} for value in values))


values = st.floats(-1e300, 1e300)
any_values = st.one_of(values, st.sampled_from([math.nan, math.inf, -math.inf]))
measured = st.lists(
    st.fixed_dictionaries({'loss': values}, optional={'a': any_values, 'b': any_values}),
    min_size=1,
    max_size=6,
)


@pytest.mark.pax('LastReportedMetricValues')
def test_last_step_takes_the_last_of_each_metric():
    # Pax's 4th defect: metrics that the last step lacks were dropped.
    measurements = steps({'a': 1.0, 'b': 2.0}, {'a': 3.0}, {'a': math.nan, 'c': 4.0})
    assert LastStep().final(measurements) == {'a': 3.0, 'b': 2.0, 'c': 4.0}


@pytest.mark.pax('AverageMetricValues(last_n)')
def test_mean_of_steps_is_over_the_steps_that_have_the_metric():
    measurements = steps({'a': 1.0, 'b': 2.0}, {'b': 4.0}, {'a': 6.0, 'b': math.inf}, {'b': 9.0})
    assert MeanOfSteps().final(measurements) == {'a': 3.5, 'b': 5.0}
    assert MeanOfSteps(last_n=2).final(measurements) == {'a': 3.5, 'b': 6.5}
    assert MeanOfSteps(last_n=1).final(measurements) == {'a': 6.0, 'b': 9.0}


def test_mean_of_steps_checks_its_field():
    with pytest.raises(ValueError, match='at least 1: 0'):
        MeanOfSteps(last_n=0)


@pytest.mark.pax('MetricsWithMaxValue')
@pytest.mark.parametrize(('mode', 'step'), [('min', 3), ('max', 4)])
def test_best_step_takes_one_step_and_the_last_of_ties(mode, step):
    measurements = steps(
        {'loss': 5.0, 'n': 1},
        {'loss': 1.0, 'n': 2},
        {'loss': 1.0, 'n': 3},
        {'loss': 5.0, 'n': 4},
        {'loss': math.nan, 'n': 5},
        {'loss': math.inf, 'n': 6},
        {'n': 7},
    )
    assert BestStep('loss', mode).final(measurements)['n'] == step


@pytest.mark.parametrize(('goal', 'loss'), [('minimize', 2.0), ('maximize', 3.0)])
def test_best_step_by_the_reward(goal, loss):
    reward = MetricReward(goal, 'loss')
    measurements = [
        Measurement(10, {'loss': 2.0}, (2.0,)),
        Measurement(20, {'loss': 3.0}, (3.0,)),
        Measurement(30, {'loss': 9.0}),
        Measurement(40, {'loss': 9.0}, (math.nan,)),
    ]
    assert final_metrics(BestStep(), measurements, reward.score) == {'loss': loss}


def test_best_step_without_a_metric_requires_a_reward():
    one, two = [Measurement(1, {'a': 1.0}, (1.0,))], [Measurement(1, {'a': 1.0}, (1.0, 2.0))]
    parts = [Measurement(1, {'a:x': 1.0, 'a:y': 1.0}, (1.0,))]
    assert final_metrics(BestStep(), one, LOSS.score) == {'a': 1.0}
    for measurements, score in ((one, None), (two, None), (two, LOSS.score), (parts, LOSS.score)):
        with pytest.raises(UserError, match='BestStep needs a metric and a mode'):
            final_metrics(BestStep(), measurements, score)
    # The only sub-experiment is the whole trial.
    parts = [Measurement(1, {'a:x': 1.0, 'num_params': 3}, (1.0,))]
    assert final_metrics(BestStep(), parts, LOSS.score) == {'a:x': 1.0, 'num_params': 3}


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'metric': 'loss'}, 'together'),
        ({'mode': 'min'}, 'together'),
        ({'metric': 'loss', 'mode': 'best'}, 'best'),
        ({'metric': 'loss:a', 'mode': 'min'}, 'must not name a sub-experiment.*: loss:a'),
        (
            {'metric': Metric('loss', 'a'), 'mode': 'min'},
            'must not name a sub-experiment.*: loss:a',
        ),
    ],
)
def test_best_step_checks_its_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        BestStep(**fields)


def test_only_best_step_needs_a_reward():
    assert BestStep().needs_reward
    assert not any(each.needs_reward for each in ALL)


def test_unmeasured_metrics_are_reported_with_their_path():
    class Holder(Component):
        metric_aggregation: BestStep

    metric_aggregation = Holder(BestStep('los', 'min')).metric_aggregation
    with pytest.raises(MissingMetricError) as error:
        final_metrics(metric_aggregation, curve('loss', 1.0, 2.0))
    assert str(error.value) == (
        "metric_aggregation.metric: 'los' is not measured. Did you mean loss? Measured: loss."
    )
    with pytest.raises(UserError, match=r'^metric_aggregation: BestStep needs'):
        final_metrics(Holder(BestStep()).metric_aggregation, curve('loss', 1.0))


@every
def test_no_measurement_raises_its_own_error(metric_aggregation):
    # Pax's 13th defect: a TypeError.
    for nothing in ([], [Measurement(10, {})], curve('loss', math.nan, math.inf)):
        with pytest.raises(NothingMeasuredError):
            final_metrics(metric_aggregation, nothing)


@every
@given(measured)
def test_finite_measurements_have_finite_final_metrics(metric_aggregation, rows):
    final = final_metrics(metric_aggregation, steps(*rows))
    assert final.keys() <= {name for row in rows for name in row}
    assert all(map(math.isfinite, final.values()))
    for name, value in final.items():
        seen = [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]
        assert min(seen) <= value <= max(seen)


@given(measured, st.sampled_from(['min', 'max']))
def test_best_step_is_never_worse_than_any_step(rows, mode):
    best = BestStep('loss', mode).final(steps(*rows))['loss']
    for row in rows:
        assert best <= row['loss'] if mode == 'min' else best >= row['loss']


@every
@given(measured)
def test_non_finite_values_are_ignored(metric_aggregation, rows):
    clean = [{n: v for n, v in row.items() if math.isfinite(v)} for row in rows]
    assert final_metrics(metric_aggregation, steps(*rows)) == final_metrics(
        metric_aggregation, steps(*clean)
    )


@every
@given(st.dictionaries(st.sampled_from('pqr'), measured, min_size=1), st.randoms())
def test_sub_experiments_are_aggregated_separately(metric_aggregation, parts, random):
    rows = [
        Measurement(step, {f'{name}:{part}': value for name, value in row.items()})
        for part, own in parts.items()
        for step, row in enumerate(own)
    ]
    together = final_metrics(metric_aggregation, rows)
    assert together == {
        f'{name}:{part}': value
        for part, own in parts.items()
        for name, value in final_metrics(metric_aggregation, steps(*own)).items()
    }
    assert final_metrics(metric_aggregation, random.sample(rows, len(rows))) == together


@pytest.mark.pax(4, 21, 'Sub-experiments are merged', 'Aggregation over sub-experiments')
def test_sub_experiments_of_unequal_length_all_count():
    # Pax's 4th defect: the shorter one's metrics were dropped, and the sum was silently wrong.
    rows = [
        Measurement(1, {'loss:short': 4.0, 'loss:long': 9.0}),
        Measurement(2, {'loss:short': 3.0, 'loss:long': 8.0}),
        Measurement(3, {'loss:long': 7.0}),
    ]
    total = MetricReward('minimize', Metric('loss', aggregator='sum'))
    assert total.value(final_metrics(LastStep(), rows)) == 10.0
    assert total.value(final_metrics(MeanOfSteps(last_n=2), rows)) == 11.0
    assert total.value(final_metrics(BestStep('loss', 'min'), rows)) == 10.0


def test_metrics_of_the_whole_trial_are_kept_beside_sub_experiments():
    rows = [
        Measurement(1, {'loss:a': 1.0, 'hours': 1.0}),
        Measurement(2, {'loss:a': 2.0, 'hours': 2.0}),
    ]
    assert final_metrics(BestStep('loss', 'min'), rows) == {'loss:a': 1.0, 'hours': 2.0}
    assert final_metrics(MeanOfSteps(), rows) == {'loss:a': 1.5, 'hours': 1.5}


def test_the_error_names_the_sub_experiment_without_the_metric():
    rows = [Measurement(1, {'loss:a': 1.0, 'bleu:b': 2.0})]
    with pytest.raises(MissingMetricError, match=r"'loss' is not measured.*\(sub-experiment b\)"):
        final_metrics(BestStep('loss', 'min'), rows)
    either = BestStep(Metric('loss|bleu', pattern=True), 'min')
    assert final_metrics(either, rows) == {'loss:a': 1.0, 'bleu:b': 2.0}
