import pytest

from paxtune.search_space.decisions import decision_points
from paxtune.search_space.parameters import ParameterSpec, reader, to_parameters, to_search_space
from paxtune.storage.codec import TrialProto
from paxtune.storage.stored_parameters import read_parameters, write_parameters
from paxtune.vizier_service.space import PlainSpace
from tests.factories.vizier_searches import choice, integer, number, numbers


def test_each_kind_of_parameter_becomes_a_decision_point_and_back():
    parameters = [
        number('rate', 1e-4, 1.0, 'UNIT_LOG_SCALE'),
        number('decay', 0.5, 0.99, 'UNIT_REVERSE_LOG_SCALE'),
        integer('depth', 2, 8),
        numbers('batch', 32.0, 8.0, 16.0),
        choice('norm', 'layer', 'none'),
        integer('always', 3, 3),
    ]
    space = PlainSpace(parameters)
    given: dict[str, str | float] = {
        'rate': 0.01, 'decay': 0.9, 'depth': 4.0, 'batch': 16.0, 'norm': 'none', 'always': 3.0
    }  # fmt: skip
    decisions = space.decisions(given)
    assert decisions == {'rate': 0.01, 'decay': 0.9, 'depth': 4, 'batch': 1, 'norm': 1, 'always': 0}
    assert space.parameters(decisions) == given
    assert [point.scale for point in list(decision_points(space.spec))[:2]] == ['log', 'rlog']


def test_children_are_decided_only_under_the_values_of_their_parents():
    kind = choice('kind', 'adam', 'sgd', 'lion')
    both = kind.conditional_parameter_specs.add(parameter_spec=number('beta', 0.0, 1.0))
    both.parent_categorical_values.values.extend(['adam', 'lion'])
    layers = integer('layers', 1, 2)
    second = layers.conditional_parameter_specs.add(parameter_spec=integer('width', 1, 9))
    second.parent_int_values.values.append(2)
    space = PlainSpace([kind, layers])
    cases: list[dict[str, str | float]] = [
        {'kind': 'lion', 'beta': 0.5, 'layers': 2.0, 'width': 7.0},
        {'kind': 'sgd', 'layers': 1.0},
    ]
    for given in cases:
        assert space.parameters(space.decisions(given)) == given
    with pytest.raises(ValueError, match='no value for beta'):
        space.decisions({'kind': 'adam', 'layers': 1.0})


def test_a_space_that_paxtune_describes_to_vizier_is_read_as_it_was():
    space = PlainSpace([number('rate', 1e-4, 1.0, 'UNIT_LOG_SCALE'), choice('norm', 'a', 'b')])
    described = to_search_space(space.spec)
    decisions = {'rate': 0.01, 'norm': 1}
    assert reader(space.spec)(to_parameters(space.spec, decisions)) == decisions
    again = PlainSpace(described)
    assert again.decisions(to_parameters(space.spec, decisions)) == decisions


@pytest.mark.parametrize(
    ('parameters', 'message'),
    [
        ([], 'has no parameters'),
        ([ParameterSpec(parameter_id='x')], 'neither DOUBLE'),
        ([number('x', 1.0, 0.0)], 'the lower one first'),
        ([number('x', 0.0, float('inf'))], 'finite bounds'),
        ([number('x', 0.0, 1.0, 'UNIT_LOG_SCALE')], 'starts above 0'),
        ([integer('x', 0, 2**60)], r'at most 2\*\*53'),
        ([choice('x')], 'expected values'),
        ([choice('x', 'a', 'a')], 'each of them once'),
        ([number('x', 0.0, 1.0)] * 2, 'different names'),
        ([number('', 0.0, 1.0)], 'different names'),
    ],
)
def test_an_invalid_search_space_is_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        PlainSpace(parameters)


def test_parameters_that_are_active_together_need_different_names():
    kind = choice('kind', 'adam', 'sgd')
    for value in ('adam', 'sgd'):  # Never both.
        child = kind.conditional_parameter_specs.add(parameter_spec=number('beta', 0.0, 1.0))
        child.parent_categorical_values.values.append(value)
    assert PlainSpace([kind]).decisions({'kind': 'sgd', 'beta': 0.5})
    with pytest.raises(ValueError, match='different names: beta'):
        PlainSpace([kind, number('beta', 0.0, 2.0)])
    kind.conditional_parameter_specs[0].parameter_spec.parameter_id = 'kind'
    with pytest.raises(ValueError, match='different names: kind'):
        PlainSpace([kind])


def test_an_empty_category_is_a_value_of_a_stored_trial():
    trial = TrialProto()
    write_parameters(trial, {'norm': '', 'x': 0.0})
    stored = read_parameters(TrialProto.FromString(trial.SerializeToString()))
    assert stored == {'norm': '', 'x': 0.0}
    assert PlainSpace([choice('norm', 'layer', '')]).decisions(stored) == {'norm': 1}


def test_children_that_no_value_has_are_counted():
    kind = choice('kind', 'a')
    for index in range(2000):
        child = kind.conditional_parameter_specs.add(parameter_spec=choice(f'x{index}', 'a'))
        child.parent_categorical_values.values.append('none')
    with pytest.raises(ValueError, match='decisions, conditional ones included'):
        PlainSpace([kind])


def test_children_that_multiply_without_end_are_refused():
    inner = choice('leaf', 'a')
    for depth in range(5):
        outer = integer(f'level_{depth}', 1, 100)
        child = outer.conditional_parameter_specs.add(parameter_spec=inner)
        child.parent_int_values.values.extend(range(1, 101))
        inner = outer
    with pytest.raises(ValueError, match='decisions, conditional ones included'):
        PlainSpace([inner])


@pytest.mark.parametrize('given', [{}, {'x': 2.0}, {'x': 'a'}, {'x': 0.5}])
def test_parameters_outside_of_the_space_are_refused(given):
    with pytest.raises(ValueError, match='x'):
        PlainSpace([integer('x', 0, 1)]).decisions(given)
