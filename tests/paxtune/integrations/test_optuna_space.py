"""Conditional spaces, inferred from trials."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyglove as pg
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import create_trial

from paxtune.algorithms.encoding.sampling import draw
from paxtune.integrations.optuna_space import ConditionalSpace, Node, infer
from paxtune.search_space.decisions import active_decision_points, numeric_candidates

RATE = FloatDistribution(1e-4, 1.0, log=True)
KIND = CategoricalDistribution(['adam', 'sgd', 'none'])
DEPTH = IntDistribution(1, 4)
UNITS = IntDistribution(4, 64, step=4)


def optimizer(draws: random.Random) -> dict[str, Any]:
    """Parameters that depend on a choice, and on an integer."""
    params: dict[str, Any] = {'kind': draws.choice(KIND.choices), 'depth': draws.randint(1, 4)}
    if params['kind'] == 'adam':
        params['beta'] = draws.uniform(0.1, 1.0)
    if params['kind'] == 'sgd':
        params['momentum'] = draws.uniform(0.1, 1.0)
        params['nesterov'] = draws.choice([True, False])
        if params['nesterov']:
            params['damping'] = draws.uniform(0.1, 1.0)
    for i in range(params['depth']):
        params[f'units{i}'] = draws.randrange(4, 65, 4)
    return params


DOMAINS: dict[str, BaseDistribution] = {
    'kind': KIND,
    'depth': DEPTH,
    'nesterov': CategoricalDistribution([True, False]),
    **dict.fromkeys(['beta', 'momentum', 'damping'], RATE),
    **{f'units{i}': UNITS for i in range(4)},
}


def trials(make: Callable[[random.Random], dict[str, Any]], count: int) -> list[dict[str, Any]]:
    draws = random.Random(0)
    return [make(draws) for _ in range(count)]


def shape(node: Node) -> Any:
    """The active parameters of a node, and the same of its alternatives."""
    return [*node.active, *([shape(each) for each in branch] for branch in node.branches)]


def test_parameters_are_conditional_on_a_choice_or_on_an_integer() -> None:
    known = trials(optimizer, 60)
    sgd = ['momentum', [['damping', 'nesterov'], ['nesterov']]]
    kinds = [['kind', *sgd], ['beta', 'kind'], ['kind']]
    found = shape(infer(DOMAINS, known))
    assert found[0] == 'units0'
    by_kind, by_depth = sorted(found[1:], key=lambda branch: 'kind' not in str(branch))
    assert sorted(map(sorted_text, by_kind)) == sorted(map(sorted_text, kinds))
    deeper = ['units2', [['depth'], ['depth', 'units3']]]
    assert by_depth == [['depth'], ['units1', [['depth'], deeper]]]


def sorted_text(value: Any) -> str:
    return ''.join(sorted(str(value)))


def test_suggested_decisions_have_the_parameters_that_the_function_asks_for() -> None:
    space = ConditionalSpace(DOMAINS, trials(optimizer, 60))
    rng = random.Random(1)
    for _ in range(50):
        params = space.decode(draw(space.spec, rng))
        expected = {'kind', 'depth', *(f'units{i}' for i in range(params['depth']))}
        expected |= {'adam': {'beta'}, 'sgd': {'momentum', 'nesterov'}}.get(params['kind'], set())
        expected |= {'damping'} if params.get('nesterov') else set()
        assert set(params) == expected


def test_trials_become_decisions_and_back() -> None:
    known = trials(optimizer, 60)
    space = ConditionalSpace(DOMAINS, known)
    for params in [*known, *trials(optimizer, 30)]:
        decisions = space.encode(params, random.Random(0))
        assert decisions is not None
        assert len(decisions) == len(list(active_decision_points(space.spec, decisions)))
        assert space.decode(decisions) == params


def test_a_parameter_without_a_condition_is_always_active_and_drawn_where_it_is_missing() -> None:
    domains = {'x': FloatDistribution(0.0, 1.0), 'y': FloatDistribution(0.0, 1.0)}
    known = [{'x': 0.1, 'y': 0.2}, {'x': 0.3}, {'x': 0.5, 'y': 0.6}]
    space = ConditionalSpace(domains, known)
    assert len(space.spec.elements) == 2
    decisions = space.encode({'x': 0.3}, random.Random(0))
    assert decisions is not None and space.decode(decisions)['x'] == 0.3
    assert decisions == space.encode({'x': 0.3}, random.Random(0))


def test_parameters_outside_of_the_latest_ranges_have_no_decisions() -> None:
    space = ConditionalSpace({'x': IntDistribution(1, 5), 'k': KIND}, [{'x': 9, 'k': 'adam'}])
    assert space.encode({'x': 9, 'k': 'adam'}, random.Random(0)) is None
    assert space.encode({'x': 5, 'k': 'lion'}, random.Random(0)) is None
    assert space.encode({'x': 5, 'k': 'sgd'}, random.Random(0)) is not None


def test_choices_between_numbers_are_ordered_and_others_are_not() -> None:
    domains = {'a': CategoricalDistribution([16, 32.0]), 'b': CategoricalDistribution([True, 1.5])}
    a, b = ConditionalSpace(domains, []).spec.elements
    assert (numeric_candidates(a), numeric_candidates(b)) == ([16, 32], [])


def test_every_kind_of_parameter_keeps_its_type_and_grid() -> None:
    domains: dict[str, BaseDistribution] = {
        'any name: ü.[0]': FloatDistribution(-10.2, 10.2, step=0.1),
        'log': IntDistribution(1, 100, log=True),
        'even': IntDistribution(-4, 4, step=2),
        'single': IntDistribution(3, 3),
    }
    space = ConditionalSpace(domains, [])
    for seed in range(20):
        params = space.decode(draw(space.spec, random.Random(seed)))
        # It raises for a value outside of its range.
        create_trial(params=params, distributions=domains, value=0.0)
        assert [type(params[name]) for name in domains] == [float, int, int, int]
        assert space.decode(space.encode(params, random.Random(0)) or {}) == params


def test_values_never_tried_belong_to_one_alternative() -> None:
    domains: dict[str, BaseDistribution] = {'n': IntDistribution(1, 100), 'k': KIND, 'p': RATE}
    known = [{'n': 10, 'k': 'adam'}, {'n': 51, 'k': 'adam', 'p': 0.5}]
    low, high = infer(domains, known).branches[0]
    assert (low.active['n'], high.active['n']) == (IntDistribution(1, 30), IntDistribution(31, 100))
    known = [{'n': 10, 'k': 'adam'}, {'n': 10, 'k': 'sgd', 'p': 0.5}]
    having, rest = infer(domains, known).branches[0]
    assert having.active['k'] == CategoricalDistribution(['sgd'])
    assert rest.active['k'] == CategoricalDistribution(['adam', 'none'])
    assert isinstance(ConditionalSpace(domains, known).spec, pg.DNASpec)


def test_parameters_of_numpy_are_encoded() -> None:
    domains = {'x': FloatDistribution(0.0, 1.0), 'n': IntDistribution(1, 9)}
    space = ConditionalSpace(domains, [])
    given = {'x': np.float32(0.5), 'n': np.int64(3)}
    assert space.encode(given, random.Random(0)) == {'p0': 2, 'p1': 0.5}
