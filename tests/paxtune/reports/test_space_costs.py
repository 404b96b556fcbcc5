"""Costs of the experiments of a space."""

import collections

import numpy as np
import pytest

from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric
from paxtune.reports.space_costs import Kept, costs, histogram, spread
from paxtune.reports.space_tables import samples
from paxtune.search_space.space import Space
from tests.factories.tunables import SIZE, Following, Widths


def test_costs_and_why_samples_are_infeasible():
    space = Space(Following())
    found = costs(space, samples(space, 12, 0))
    assert found.num_samples == 12
    reasons = collections.Counter(found.reasons)
    assert reasons.pop('twelve is unlucky') == 3
    attention = 'task.model.stack.layers[0].attention'
    assert reasons.pop(f'{attention}: head_dim must be even for rotary positions: 3') == 1
    assert reasons.pop(next(r for r in reasons if r.startswith(SIZE) and '2.66' in r)) == 1
    assert reasons.pop(next(r for r in reasons if r.startswith(SIZE) and '5.33' in r)) == 1
    assert reasons
    assert all('num_params is' in reason for reason in reasons)
    feasible = 12 - len(found.reasons)
    assert feasible > 0
    assert all(len(values) == feasible for values in found.values.values())
    assert max(found.values['num_params']) <= 2000


def num_params(hidden: int) -> int:
    """Of `Widths`, counted by hand."""
    return 32 * 16 + 3 * 16 + 4 * 16**2 + 2 * 16 * hidden


def test_the_share_of_samples_within_the_limits():
    space = Space(Widths())
    found = costs(space, samples(space, 4, 0))
    assert num_params(64) < 4000 < num_params(128)
    state = {hidden: 12 * num_params(hidden) + 8 for hidden in (32, 64)}
    assert state[32] < 40_000 < state[64]
    assert found.limits == [
        Kept('num_params ≤ 4000', 2, 4),
        Kept('40000 ≤ state_bytes', 3, 4),
        Kept('all of them', 1, 4),
    ]
    assert found.values['state_bytes'] == [state[64]]
    assert len(found.reasons) == 3


def test_costs_of_sub_experiments_are_held_against_limits_as_in_a_trial():
    made = Widths()
    total = Metric.num_params(aggregator='sum')
    limits = [Limit(total, at_most=num_params(32) + num_params(64))]
    made.rebind({'sub_experiments': {'a': {}, 'b': {}}, 'search.limits': limits})
    space = Space(made)
    found = costs(space, samples(space, 4, 0))
    assert found.limits[0].kept == 1
    assert found.values['num_params'] == [num_params(32)] * 2


@pytest.mark.slow
def test_compiled_costs_are_measured_on_request():
    made = Widths()
    made.rebind({'search.limits': [*made.search.limits[:1], Limit('step_seconds', at_most=1e-9)]})
    space = Space(made)
    decided = samples(space, 4, 0)
    assert {'device_memory_bytes', 'step_seconds'} & costs(space, decided).values.keys() == set()
    found = costs(space, decided, is_measured=True)
    assert found.limits == [
        Kept('num_params ≤ 4000', 2, 4),
        Kept('step_seconds ≤ 1e-09', 0, 2),  # What is too large is not timed.
        Kept('all of them', 0, 4),
    ]
    assert [reason.split()[0] for reason in found.reasons] == ['step_seconds'] * 2 + [
        'num_params'
    ] * 2


def test_quantiles_are_those_of_numpy():
    values = np.random.default_rng(0).normal(size=37).tolist()
    assert spread(values) == pytest.approx(np.quantile(values, [0, 0.1, 0.5, 0.9, 1]).tolist())
    assert spread([3.0]) == (3.0,) * 5


def test_a_histogram_has_all_values_each_in_its_bin():
    heights = ' ▁▂▃▄▅▆▇█'
    values = [0.0] * 8 + [1.0] * 4 + [2.0] + [4.0] * 2
    assert [heights.index(bar) for bar in histogram(values, 4)] == [8, 4, 1, 2]
    decades = [10.0**power for power in (0, 0, 1, 2, 3)]
    assert [heights.index(bar) for bar in histogram(decades, 4, is_log=True)] == [8, 4, 4, 4]
    assert histogram([5.0, 5.0], 3) == ' █ '
