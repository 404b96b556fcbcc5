"""Decisions as parameters of Vizier, and spaces as Vizier's."""

import random
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from vizier import pyvizier as vz
from vizier._src.service import study_pb2
from vizier.service import pyvizier as svz

from paxtune.algorithms.encoding.sampling import draw
from paxtune.search_space.decisions import (
    spec_from_json,
    spec_to_json,
    to_dna,
)
from paxtune.search_space.parameters import reader, to_parameters, to_search_space
from paxtune.search_space.space import Space
from tests.factories.spaces import SEEDS, values
from tests.factories.toys import Block, Dense
from tests.properties import examples


def _stored(parameters: dict[str, Any]) -> dict[str, Any]:
    """A trial's parameters after storage in Vizier."""
    proto = svz.TrialConverter.to_proto(vz.Trial(parameters=parameters))
    return svz.TrialConverter.from_proto(
        type(proto).FromString(proto.SerializeToString())
    ).parameters.as_dict()


@examples(25)
@given(values(), SEEDS)
@pytest.mark.contract
def test_decisions_survive_vizier(value, seed):
    space = Space(value)
    decisions = draw(space.spec, random.Random(seed))
    stored_spec = spec_from_json(spec_to_json(space.spec))
    back = reader(stored_spec)(_stored(to_parameters(space.spec, decisions)))
    assert list(back.items()) == list(decisions.items())
    assert pg.eq(space.materialize(back), pg.materialize(value, to_dna(space.spec, decisions)))


@examples(30)
@given(values(), SEEDS)
def test_every_trial_is_valid_in_the_vizier_space(value, seed):
    spec = pg.dna_spec(value)
    parameters = to_parameters(spec, draw(spec, random.Random(seed)))
    _assert_contains(_search_space(spec), dict(parameters))


def _search_space(spec: pg.DNASpec) -> vz.SearchSpace:
    """The space as Vizier reads it from a study."""
    stored = study_pb2.StudySpec(parameters=to_search_space(spec))
    return svz.StudyConfig.from_proto(stored).search_space


def _assert_contains(search_space: vz.SearchSpace, parameters: dict[str, Any]) -> None:
    def walk(configs: Any) -> None:
        for config in configs:
            value = parameters.pop(config.name)
            assert config.contains(value)
            walk(
                child
                for child in config.child_parameter_configs
                if value in child.matching_parent_values
            )

    walk(search_space.parameters)
    assert not parameters


def test_vizier_space_keeps_scales_bounds_and_conditions():
    spec = pg.dna_spec(
        pg.Dict(
            rate=pg.floatv(1e-4, 1e-1, 'log'),
            decay=pg.floatv(0.5, 0.9, 'rlog'),
            width=pg.oneof([64, 16, 32]),
            layer=pg.oneof([Block(heads=pg.oneof([1, 2])), Dense()]),
        )
    )
    rate, decay, width, layer = _search_space(spec).parameters
    assert (rate.type, rate.bounds) == (vz.ParameterType.DOUBLE, (1e-4, 1e-1))
    assert rate.scale_type == vz.ScaleType.LOG
    assert decay.scale_type == vz.ScaleType.REVERSE_LOG
    assert (width.type, width.feasible_values) == (vz.ParameterType.DISCRETE, [16, 32, 64])
    assert layer.type == vz.ParameterType.CATEGORICAL
    (heads,) = layer.child_parameter_configs
    assert heads.name == 'layer[=0/2].heads'
    assert heads.matching_parent_values == [layer.feasible_values[0]]


@pytest.mark.parametrize(
    ('candidates', 'discrete'),
    [
        ([1, 2.5], True),
        ([1, 1.0], False),
        ([True, 2], False),
        ([1.0, float('inf')], False),
        ([2**53, 2**53 + 1], False),
        ([10**400, 1], False),
    ],
)
def test_only_distinct_finite_numbers_are_discrete(candidates, discrete):
    spec = pg.dna_spec(pg.Dict(x=pg.oneof(candidates)))
    (parameter,) = _search_space(spec).parameters
    assert (parameter.type == vz.ParameterType.DISCRETE) == discrete
    for index in range(2):
        assert reader(spec)(_stored(to_parameters(spec, {'x': index}))) == {'x': index}


def test_a_decision_at_the_root_has_a_name_in_vizier():
    spec = pg.dna_spec(pg.oneof([Dense(), Block()]))
    assert list(to_parameters(spec, {'': 1})) == ['$']
    assert reader(spec)(to_parameters(spec, {'': 1})) == {'': 1}


@pytest.mark.parametrize(
    'parameters',
    [{}, {'x': '2/2 (b)'}, {'x': 'a'}, {'x': '1/2', 'y': 1.0}, {'x': 1.0}, {'x': '-1/2'}],
)
def test_parameters_of_another_space_are_rejected(parameters):
    with pytest.raises(ValueError, match='parameter'):
        reader(pg.dna_spec(pg.Dict(x=pg.oneof(['a', 'b']))))(parameters)
