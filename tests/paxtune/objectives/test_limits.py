import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric, as_metric

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.floats(allow_nan=False), finite, finite)
def test_values_within_bounds_satisfy_a_limit(value, one, another):
    low, high = sorted([one, another])
    limit = Limit('m', at_most=high, at_least=low)
    assert (limit.violation({'m': value}) is None) == (low <= value <= high)
    assert (Limit('m', at_most=high).violation({'m': value}) is None) == (value <= high)
    assert (Limit('m', at_least=low).violation({'m': value}) is None) == (low <= value)


@pytest.mark.parametrize(
    ('limit', 'metrics', 'violation'),
    [
        (
            Limit('num_params', at_most=1_000_000),
            {'num_params': 1_200_000},
            'num_params is 1.2e+06, above its limit of 1e+06',
        ),
        (
            Limit('num_params', at_most=1_000_000),
            {'num_params': 1_000_000.5},
            'num_params is 1000000.5, above its limit of 1e+06',
        ),
        (
            Limit('eval/accuracy', at_least=0.5),
            {'eval/accuracy': 0.25},
            'eval/accuracy is 0.25, below its limit of 0.5',
        ),
        (
            Limit('loss', at_most=1.0),
            {'loss': math.nan},
            'loss is nan, which violates every limit',
        ),
        (
            Limit('loss', at_most=1.0),
            {'loss:a': 0.5, 'loss:b': 2.0},
            'loss:b is 2, above its limit of 1',
        ),
        (
            Limit(Metric('loss', aggregator='sum'), at_most=1.0),
            {'loss:a': 0.75, 'loss:b': 0.5},
            'sum of loss is 1.25, above its limit of 1',
        ),
        (Limit('loss', at_most=1.0), {'loss:a': 0.75, 'loss:b': 0.5}, None),
        (Limit('loss', at_most=1.0), {'eval/loss': 2.0}, None),
        (Limit(Metric('loss', aggregator='sum'), at_most=1.0), {}, None),
    ],
)
def test_violations(limit, metrics, violation):
    assert limit.violation(metrics) == violation


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({}, 'at_most or at_least'),
        ({'at_most': 1.0, 'at_least': 2.0}, r'at_least \(2.0\) must not be above at_most \(1.0\)'),
        ({'at_most': math.nan}, 'finite'),
        ({'at_least': -math.inf}, 'finite'),
    ],
)
def test_invalid_limits_are_rejected(fields, message):
    with pytest.raises(ValueError, match=message):
        Limit('m', **fields)


@pytest.mark.parametrize(
    ('metric', 'is_static'),
    [
        ('num_params', True),
        (Metric.flops_per_token(sub_experiment='a'), True),
        ('num_params:a', True),
        ('state_bytes', True),
        ('device_memory_bytes', False),
        ('step_seconds', False),
        ('eval/num_params', False),
        (Metric('num_.*', pattern=True), False),
    ],
)
def test_limits_on_traced_costs_need_no_compilation(metric, is_static):
    assert Limit(metric, at_most=1.0).is_static == is_static
    assert Limit(metric, at_most=1.0).selector.label == as_metric(metric).label
