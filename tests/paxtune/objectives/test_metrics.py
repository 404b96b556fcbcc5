import math
import statistics
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.objectives.metrics import (
    Aggregator,
    Metric,
    MissingMetricError,
    aggregate,
    as_metric,
    join_name,
    split_name,
)
from trainer.symbolic.errors import UserError

AGGREGATORS = get_args(Aggregator)
FOLDS = {'eval/loss:fold0': 1.0, 'eval/loss:fold1': 3.0, 'train/loss:fold0': 9.0}
_OTHERS = ('train', 'eval_train')
PLAIN = {'train/loss': 1.0, 'eval/loss': 2.0, 'test/loss': 3.0, 'eval/loss_2': 4.0, 'num_params': 5}

finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(st.characters(exclude_characters=':', exclude_categories=['Cs']), min_size=1)


@pytest.mark.pax(9, 10, 'Names are regular')
@given(names, st.lists(names))
def test_names_match_exactly(name, others):
    assert Metric(name).matches([*others, name]) == sorted(
        [*(o for o in others if o == name), name]
    )


@pytest.mark.pax(9)
@given(names, names, st.sampled_from(['train', 'eval']))
def test_factories_escape_names(name, dataset, kind):
    # Pax's 9th defect: acc(@1) and a+b never matched, and a dot was any character.
    metric = Metric.train(name) if kind == 'train' else Metric.eval(name, dataset)
    full = f'{"train" if kind == "train" else dataset}/{name}'
    assert metric.matches([full, f'{full}:fold0', f'x{full}', f'{full}x']) == [
        full,
        f'{full}:fold0',
    ]


@given(names, names.filter(lambda name: '/' not in name and name not in _OTHERS))
def test_any_evaluation_set_excludes_training(name, dataset):
    metric = Metric.eval(name)
    measured = [f'{group}/{name}' for group in (dataset, 'train', 'eval_train')]
    assert metric.matches(measured) == [f'{dataset}/{name}']
    assert not metric.matches([f'{dataset}/more/{name}', f'{dataset}/{name}x', name])


@pytest.mark.pax('Metric.train')
def test_factories_name_measured_metrics():
    made = {
        Metric.train('loss'): 'train/loss',
        Metric.eval_train('loss'): 'eval_train/loss',
        Metric.eval('loss', 'test'): 'test/loss',
        Metric.decode('exact_match', 'test'): 'decode_test/exact_match',
        Metric.num_params(): 'num_params',
        Metric.flops_per_token(): 'flops_per_token',
        Metric.state_bytes(): 'state_bytes',
        Metric.device_memory_bytes(): 'device_memory_bytes',
        Metric.step_seconds(): 'step_seconds',
        Metric.train_steps_per_second(): 'train/steps_per_second',
        Metric.eval_steps_per_second(): 'eval_steps_per_second',
        Metric.decode_steps_per_second(): 'decode_steps_per_second',
    }
    for metric, name in made.items():
        assert metric.label == name
        assert metric.value({name: 2.0, 'other': 1.0}) == 2.0


@pytest.mark.parametrize(
    'make',
    [
        lambda **fields: Metric.train('x', **fields),
        lambda **fields: Metric.eval('x', **fields),
        lambda **fields: Metric.decode('x', **fields),
        Metric.num_params,
        Metric.flops_per_token,
        Metric.state_bytes,
        Metric.device_memory_bytes,
        Metric.step_seconds,
        Metric.train_steps_per_second,
        Metric.eval_steps_per_second,
        Metric.decode_steps_per_second,
    ],
)
def test_factories_accept_sub_experiment_and_aggregator(make):
    metric = make(sub_experiment='fold1', aggregator='max')
    assert (metric.sub_experiment, metric.aggregator) == ('fold1', 'max')


def test_metrics_select_sub_experiments():
    assert Metric('eval/loss', sub_experiment='fold1').value(FOLDS) == 3.0
    assert Metric('eval/loss:fold1').value(FOLDS) == 3.0
    assert Metric('eval/loss', aggregator='sum').value(FOLDS) == 4.0
    assert Metric('train/loss').value(FOLDS) == 9.0
    assert Metric('eval/loss', sub_experiment='fold1').matches(PLAIN) == []
    assert Metric('eval/loss:fold1', sub_experiment='fold1').matches(FOLDS) == []


@pytest.mark.pax('Upper and lower')
def test_patterns_match_whole_names_case_sensitively():
    assert Metric('e.*/loss', pattern=True).matches(PLAIN) == ['eval/loss']
    assert Metric('E.*/loss', pattern=True).matches(PLAIN) == []
    assert Metric('.*/loss(_2)?', aggregator='max', pattern=True).value(PLAIN) == 4.0
    folds = Metric('.*/loss', pattern=True, sub_experiment='fold0').matches(FOLDS)
    assert folds == ['eval/loss:fold0', 'train/loss:fold0']


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'name': ''}, 'must not be empty'),
        ({'name': 'eval/(', 'pattern': True}, r"'eval/\(' is no regular expression: missing \)"),
        ({'name': 'loss', 'sub_experiment': ''}, 'no name of a sub-experiment'),
        ({'name': 'loss', 'sub_experiment': 'a:b'}, 'no name of a sub-experiment'),
        ({'name': 'loss', 'aggregator': 'average'}, 'average'),
    ],
)
def test_invalid_metrics_are_rejected(fields, message):
    with pytest.raises(ValueError, match=message):
        Metric(**fields)


def test_plain_names_need_not_be_regular_expressions():
    assert Metric('eval/acc(@1').value({'eval/acc(@1': 1.0}) == 1.0


@pytest.mark.parametrize(
    ('metric', 'message'),
    [
        (
            Metric('eval/los'),
            "'eval/los' is not measured. Did you mean eval/loss or eval/loss_2? "
            'Measured: eval/loss, eval/loss_2, num_params, test/loss, train/loss.',
        ),
        (
            Metric('q', sub_experiment='a'),
            "'q:a' is not measured. "
            'Measured: eval/loss, eval/loss_2, num_params, test/loss, train/loss.',
        ),
        (
            Metric('q.*', pattern=True),
            "no metric that matches 'q.*' is measured. "
            'Measured: eval/loss, eval/loss_2, num_params, test/loss, train/loss.',
        ),
    ],
)
def test_missing_metrics_are_reported_with_the_measured_ones(metric, message):
    with pytest.raises(MissingMetricError) as error:
        metric.value(PLAIN)
    assert str(error.value) == message


def test_messages_begin_with_the_path():
    with pytest.raises(MissingMetricError) as error:
        Metric('loss').value({}, 'search.objective.metric')
    assert str(error.value) == (
        "search.objective.metric: 'loss' is not measured. Measured: nothing."
    )


@pytest.mark.parametrize(
    ('metric', 'metrics', 'ways'),
    [
        (
            Metric('eval/loss'),
            FOLDS,
            "'eval/loss' may be eval/loss:fold0, eval/loss:fold1. Either choose one: "
            "sub_experiment='fold0', or combine them: aggregator='mean' "
            "('sum', 'max', 'min', 'median').",
        ),
        (
            Metric.eval('loss'),
            PLAIN,
            "'*/loss' may be eval/loss, test/loss. Either name one in full: 'eval/loss', or "
            "combine them: aggregator='mean' ('sum', 'max', 'min', 'median').",
        ),
    ],
)
def test_several_matches_require_an_aggregator(metric, metrics, ways):
    with pytest.raises(UserError) as error:
        metric.value(metrics)
    assert not isinstance(error.value, MissingMetricError)
    assert str(error.value) == ways


@pytest.mark.parametrize(
    ('metric', 'label'),
    [
        (Metric('eval/loss'), 'eval/loss'),
        (Metric('eval/loss', 'fold0', 'mean'), 'mean of eval/loss:fold0'),
        (Metric.eval('f1(@5)', sub_experiment='a'), '*/f1(@5):a'),
        (Metric('.*/loss', pattern=True), '.*/loss'),
    ],
)
def test_labels(metric, label):
    assert metric.label == label


@given(st.lists(finite, min_size=1), st.sampled_from(AGGREGATORS), st.randoms())
def test_aggregates_of_finite_values_are_not_nan_in_any_order(values, aggregator, random):
    made = aggregate(aggregator, values)
    assert not math.isnan(made)
    assert aggregate(aggregator, random.sample(values, len(values))) == made
    if aggregator != 'sum':
        assert min(values) <= made <= max(values)


@given(st.lists(st.floats(), min_size=1), st.sampled_from(AGGREGATORS))
def test_aggregates_of_nan_are_nan(values, aggregator):
    made = aggregate(aggregator, values)
    assert math.isnan(made) or not any(map(math.isnan, values))


@pytest.mark.pax(21, '`aggregator`: max, min')
@pytest.mark.parametrize(
    ('aggregator', 'value'),
    [('mean', 2.5), ('sum', 10.0), ('max', 5.0), ('min', 0.5), ('median', 2.25)],
)
def test_aggregators(aggregator, value):
    # Pax's 21st defect: a string was annotated, and refused.
    metrics = {'x:a': 0.5, 'x:b': 5.0, 'x:c': 2.0, 'x:d': 2.5}
    assert Metric('x', aggregator=aggregator).value(metrics) == value


@given(st.lists(st.integers(-1000, 1000).map(float), min_size=1))
def test_the_median_equals_that_of_statistics(values):
    assert aggregate('median', values) == statistics.median(values)


def test_overflowing_sums_are_infinite():
    assert aggregate('sum', [1.7e308, 1.7e308]) == math.inf
    assert aggregate('sum', [-1.7e308, -1.7e308]) == -math.inf
    assert aggregate('sum', [1.7e308, 1.7e308, -1.7e308]) == 1.7e308
    assert aggregate('mean', [1.7e308, 1.7e308]) == 1.7e308


@given(st.text())
def test_joining_inverts_splitting(name):
    assert join_name(*split_name(name)) == name


@given(st.text(), names)
def test_splitting_inverts_joining(name, sub_experiment):
    if name:
        assert split_name(join_name(name, sub_experiment)) == (name, sub_experiment)


def test_strings_convert_to_metrics():
    assert as_metric('eval/loss').label == 'eval/loss'
    metric = Metric('x')
    assert as_metric(metric) is metric
