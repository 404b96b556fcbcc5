import json
import random
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vizier import pyvizier as vz
from vizier._src.service import study_pb2
from vizier.service import pyvizier as svz

from paxtune.algorithms.encoding.sampling import draw
from paxtune.search_space.decisions import (
    decide,
    from_dna,
    size,
    slot_ids,
    spec_from_json,
    spec_to_json,
    to_dna,
)
from paxtune.search_space.labels import (
    candidate_names,
    display_name,
    match_candidate,
    parameter_path,
)
from paxtune.search_space.parameters import reader, to_parameters, to_search_space
from paxtune.search_space.space import Space
from tests.paxtune.spaces import values
from tests.paxtune.toys import Block, Dense, toy
from tests.properties import examples
from trainer.symbolic.derived import Derived, derived, derived_values
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv

SEEDS = st.integers(0, 2**32)


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
@pytest.mark.contract
def test_decisions_equal_those_of_pyglove(value, seed):
    spec = pg.dna_spec(value)
    dna = spec.random_dna(random.Random(seed))
    decisions = from_dna(spec, dna)
    assert decisions == dna.to_dict()
    assert pg.eq(to_dna(spec, decisions), dna)
    assert pg.eq(spec_from_json(spec_to_json(spec)), spec)


@examples(30)
@given(values(), SEEDS)
def test_readable_decisions_are_json_and_parse(value, seed):
    space = Space(value)
    decisions = draw(space.spec, random.Random(seed))
    readable = space.readable(decisions)
    assert len(readable) == len(decisions)
    assert space.parse(json.loads(json.dumps(readable))) == decisions


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


@pytest.mark.parametrize(
    'text',
    [
        '{"_type": "type", "name": "os.system"}',
        '{"_type": "pyglove.generators.geno.Template", "elements": [{"_type": ["x"]}]}',
        '{"_type": "pyglove.generators.geno.Template", "elements": [], "hints":'
        ' {"_type": "_OpaqueObject", "value": ""}}',
        '["__tuple__", 1]',
        '{"_type": "pyglove.generators.geno.Template", "elements": [{"num_choices": 10001}]}',
        '{"num_choices": 1000, "candidates": [{"num_choices": 1000}]}',
        '{"num_choices": "1"}',
    ],
)
def test_a_stored_space_names_nothing_but_decisions(text):
    with pytest.raises(ValueError, match='not part of a search space'):
        spec_from_json(text)


@pytest.mark.parametrize(
    'text',
    [
        '[' * 100_000,
        '{',
        '3',
        '{"_type": "pyglove.generators.geno.Template", "elements": [], "allow_partial": 1}',
        '{"_type": "pyglove.generators.geno.Template", "elements": 3}',
    ],
)
def test_an_invalid_stored_space_is_refused(text):
    with pytest.raises(ValueError, match='not a search space'):
        spec_from_json(text)


@pytest.mark.parametrize(
    'value',
    [
        pg.manyof(10**9, [1, 2], distinct=False),
        pg.manyof(1000, [pg.manyof(1000, [1, 2], distinct=False)], distinct=False),
        pg.oneof([1, pg.manyof(10**5, [pg.floatv(0.0, 1.0), 2], distinct=False)]),
    ],
)
def test_too_many_decisions_are_rejected_quickly(value):
    with pytest.raises(UserError, match=r'^x: [12]\d+ decisions are too many'):
        Space(pg.Dict(x=value, y=pg.oneof([1, 2])))


def test_spaces_are_infinite_only_with_a_range_of_floats():
    assert size(pg.dna_spec(pg.Dict(x=pg.oneof([1, 2]), y=pg.permutate([1, 2, 3])))) == 12
    assert size(pg.dna_spec(pg.Dict(x=pg.oneof([1, pg.floatv(0.0, 1.0)])))) is None


def test_decide_visits_active_points_alone():
    asked: list[str] = []

    def choose(point):
        asked.extend(slot_ids(point))
        return 0.5 if isinstance(point, pg.geno.Float) else list(range(point.num_choices))

    decide(Space(toy()).spec, choose)
    assert asked == ['rate', 'layer', 'layer[=0/3].heads', 'widths[0]', 'widths[1]']


def test_trials_do_not_share_components():
    space = Space(pg.Dict(layer=pg.oneof([Dense(), Block()]), rate=pg.floatv(0.0, 1.0)))
    one, other = (space.materialize({'layer': 0, 'rate': rate}) for rate in (0.1, 0.2))
    assert one.layer is not other.layer


def test_paths_exist_in_the_concrete_experiment():
    space = Space(toy())
    decisions = {'rate': 0.01, 'layer': 0, 'layer[=0/3].heads': 2, 'widths[0]': 3, 'widths[1]': 0}
    readable = space.readable(decisions)
    assert readable == {
        'rate': 0.01,
        'layer': 'Block',
        'layer.heads': 4,
        'widths[0]': 4,
        'widths[1]': 1,
    }
    experiment = space.materialize(decisions)
    for where, value in readable.items():
        found = experiment.sym_get(where)
        assert found == value or display_name(found).startswith(str(value))


@pytest.mark.parametrize(
    ('id_', 'expected'),
    [
        ('a[=0/2].b', 'a.b'),
        ('a[=0/2]', 'a[=0/2]'),
        ('a[=0/2][=1/2].b', 'a.b'),
        ('a[=0/2][=1/2]', 'a[=0/2][=1/2]'),
        ('a[0][=0/2][1].c', 'a[0][1].c'),
    ],
)
def test_path(id_, expected):
    assert parameter_path(id_) == expected


def test_candidate_names_are_plain_values_or_display_names():
    given = [1, True, 1.0, 'x', None, Dense(), Dense(16), Block(heads=pg.oneof([1, 2])), [1, 'a']]
    expected = [1, True, 1.0, 'x', None, 'Dense', 'Dense(width=16)', 'Block', "[1, 'a']"]
    assert [(type(a), a) for a in candidate_names(given)] == [(type(b), b) for b in expected]
    assert candidate_names([Dense(), Dense(width=pg.oneof([1, 2]))]) == ['Dense #0', 'Dense #1']
    assert candidate_names([float('nan'), float('inf')]) == ['nan', 'inf']


@pytest.mark.parametrize(
    ('value', 'index'),
    [
        (1, 1),
        (True, 2),
        ('1', 0),
        (2, 3),
        ('2.0', 3),
        (Dense(16), 4),
        ('Dense(width=16)', 4),
        ('Block()', 5),
        ('None', 6),
        (None, 6),
        (0, None),
        ('block', None),
    ],
)
def test_matching_prefers_the_same_type(value, index):
    assert match_candidate(value, ['1', 1, True, 2.0, 'Dense(width=16)', 'Block', None]) == index


def test_missing_decisions_are_listed():
    with pytest.raises(UserError) as error:
        Space(toy()).parse({'layer': 'Block', 'widths[0]': 1})
    assert str(error.value) == (
        'These decisions are missing:\n'
        '  rate: a number from 0.0001 to 0.1\n'
        '  layer.heads: one of 1, 2, 4\n'
        '  widths[1]: one of 1, 2, 3, 4'
    )


def test_missing_decisions_are_listed_before_their_conditional_ones():
    with pytest.raises(UserError, match='are missing') as error:
        Space(toy()).parse({'rate': 0.01, 'layer.heads': 2, 'widths[0]': 1, 'widths[1]': 2})
    assert 'layer: one of Block, Dense, Dense(width=16)' in str(error.value)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'rate': 0.5}, 'rate must be a number from 0.0001 to 0.1: 0.5'),
        ({'rate': 'fast'}, "rate must be a number from 0.0001 to 0.1: 'fast'"),
        ({'rate': True}, 'rate must be a number from 0.0001 to 0.1: True'),
        ({'rate': 'nan'}, "rate must be a number from 0.0001 to 0.1: 'nan'"),
        ({'layer': 'Dens'}, "layer must be one of Block, Dense, Dense(width=16): 'Dens'"),
        ({'layer.heads': 2}, 'layer.heads is inactive with the other decisions.'),
        ({'ratio': 2}, 'ratio is no decision of this experiment. Did you mean rate?'),
        ({'widths[1]': 3}, 'widths: the choices must differ from each other.'),
    ],
)
def test_illegal_decisions_are_refused(change, message):
    legal = {'rate': 0.01, 'layer': 'Dense', 'widths[0]': 3, 'widths[1]': 4}
    with pytest.raises(UserError) as error:
        Space(toy()).parse(legal | change)
    assert str(error.value) == message


def test_text_from_a_command_line_is_parsed():
    given = {
        'rate': '1e-3',
        'layer': 'Block()',
        'layer.heads': '4',
        'widths[0]': '1',
        'widths[1]': '2',
    }
    decisions = Space(toy()).parse(given)
    assert decisions == {
        'rate': 1e-3,
        'layer': 0,
        'layer[=0/3].heads': 2,
        'widths[0]': 0,
        'widths[1]': 1,
    }


def test_sorted_choices_must_be_in_order():
    space = Space(pg.Dict(x=pg.manyof(2, [1, 2, 3], sorted=True)))
    with pytest.raises(UserError, match='in order'):
        space.parse({'x[0]': 2, 'x[1]': 1})


def _range(low: float, high: float, scale: str | None) -> Any:
    # As an override creates it: PyGlove checks bounds only in the constructor.
    decision = pg.floatv(1.0, 2.0)
    return decision.rebind(min_value=low, max_value=high, scale=scale, skip_notification=True)


@pytest.mark.parametrize(
    ('value', 'message'),
    [
        (pg.Dict(x=1), 'There is nothing to search'),
        (pg.Dict(x=_range(0.0, 1.0, 'log')), 'x: a range on a log scale must start above 0: 0.0'),
        (pg.Dict(x=pg.oneof([_range(-1.0, 1.0, 'rlog')])), 'x: a range on a rlog scale must'),
        (pg.Dict(x=pg.floatv(1.0, 1.0)), 'x: a range must have finite bounds'),
        (pg.Dict(x=pg.floatv(0.0, float('inf'))), 'x: a range must have finite bounds'),
        (pg.Dict(x=pg.oneof([0, pg.floatv(2.0, 2.0)])), 'x: a range must have finite'),
        (pg.Dict(x=pg.evolve(Dense(), lambda *_: Dense())), 'x: Evolvable cannot'),
        (
            pg.Dict(x=pg.oneof([1, 2], name='n'), y=pg.oneof([1, 3], name='n')),
            "x and y: both decisions have the name 'n', and they differ",
        ),
        (
            pg.Dict(x=pg.oneof([None, pg.Dict(y=derived('widht'))]), width=1),
            r'x.* names widht, which is no field here.* Did you mean width\?',
        ),
        (
            pg.Dict(x=pg.oneof([1, 2]), y=derived('z'), z=derived('y + x')),
            'y, z: derived values that follow from themselves',
        ),
    ],
)
def test_spaces_that_cannot_be_searched_are_refused(value, message):
    with pytest.raises(UserError, match=message):
        Space(value)


@pytest.mark.parametrize('written', [4, 4.0, '4', '4.0', '4e0'])
def test_integers_are_parsed(written):
    space = Space(pg.Dict(n=intv(1, 8)))
    decisions = space.parse({'n': written})
    assert decisions == {'n': 4}
    assert type(decisions['n']) is int
    assert type(space.materialize(decisions).n) is int
    assert space.readable(decisions) == {'n': 4}


@pytest.mark.parametrize('written', [0, 9, 2.5, '2.5', True, 'many', 'nan', 10**400])
def test_non_integers_are_rejected_in_ranges_of_integers(written):
    with pytest.raises(UserError, match=r'^n must be an integer from 1 to 8: '):
        Space(pg.Dict(n=intv(1, 8))).parse({'n': written})


@pytest.mark.parametrize(
    ('low', 'high', 'scale', 'message'),
    [
        (0.0, 8.0, 'log', 'n: a range on a log scale must start above 0'),
        (1.5, 8.0, None, 'n: the bounds of intv must be integers: 1.5, 8.0'),
        (8.0, 8.0, None, 'n: a range must have finite bounds'),
    ],
)
def test_ranges_of_integers_are_validated(low, high, scale, message):
    decision = intv(1, 2)
    decision.rebind(min_value=low, max_value=high, scale=scale, skip_notification=True)
    with pytest.raises(UserError, match=message):
        Space(pg.Dict(n=decision))


def _blocks() -> pg.Dict:
    """Widths and head counts at three depths, with derived values."""
    block = pg.Dict(
        heads=pg.oneof([1, 2, 3]), dim=derived('width // heads'), used=derived('dim * heads')
    )
    other = pg.Dict(heads=1, dim=derived('width'), used=derived('width'))
    return pg.Dict(
        width=pg.oneof([8, 12]),
        layers=[
            pg.oneof([pg.Dict(width=pg.oneof([6, 4]), block=pg.oneof([block, other])), other]),
            pg.oneof([block, other]),
        ],
        total=derived('layers[1].used + width'),
    )


def _assert_blocks_hold(made: pg.Dict) -> None:
    outer = made.layers[0]
    found = [(made.layers[1], made.width)]
    found.append((outer.block, outer.width) if 'block' in outer else (outer, made.width))
    for block, width in found:
        assert block.dim == width // block.heads
        assert block.used == block.dim * block.heads
    assert made.total == made.layers[1].used + made.width


@examples(40)
@given(SEEDS)
def test_derived_values_are_resolved_in_every_experiment(seed):
    space = Space(_blocks())
    made = space.materialize(draw(space.spec, random.Random(seed)))
    assert not list(derived_values(made))
    _assert_blocks_hold(made)


def test_decoding_leaves_derived_values_unresolved():
    space = Space(_blocks())
    decided = space.decode(draw(space.spec, random.Random(0)))
    assert pg.is_deterministic(decided)
    assert isinstance(decided.total, Derived)


def test_decoding_does_not_modify_the_space():
    space = Space(_blocks())
    before = space.value.to_json_str()
    for seed in range(4):
        made = space.materialize(draw(space.spec, random.Random(seed)))
        made.layers[0].rebind(extra=1)
    assert space.value.to_json_str() == before


def test_derived_values_distinguish_illegal_values_and_unknown_paths():
    block = Block(heads=derived('width / parts'))
    space = Space(
        pg.Dict(width=9, parts=pg.oneof([3, 2, 0]), x=block, y=derived('z.depth'), z=pg.oneof(
            [pg.Dict(depth=1), pg.Dict(size=2)]
        ))
    )  # fmt: skip
    assert space.materialize({'parts': 0, 'z': 0}).x.heads == 3
    with pytest.raises(ValueError, match=r"x.heads: derived\('width / parts'\): .* got 4.5"):
        space.materialize({'parts': 1, 'z': 0})
    with pytest.raises(ValueError, match=r'x.heads: .*division by zero'):
        space.materialize({'parts': 2, 'z': 0})
    with pytest.raises(UserError, match=r'y: .* names z.depth, which does not exist. z has: size'):
        space.materialize({'parts': 0, 'z': 1})


class _Picky(Block):
    def check(self) -> None:
        if self.heads != 4:
            raise ValueError('heads must be 4')


def test_names_of_derived_values_are_their_expressions():
    assert display_name(Dense(width=derived('4 * heads'))) == 'Dense(width=4 * heads)'
    value = pg.Dict(x=pg.oneof([derived('y * 2'), 3]), y=2)
    space = Space(value)
    decisions = space.parse({'x': 'y * 2'})
    assert space.readable(decisions) == {'x': 'y * 2'}
    assert space.materialize(decisions).x == 4


def test_lists_are_matched_by_text_regardless_of_spaces():
    space = Space(pg.Dict(x=pg.oneof([[0.1, 32], [0.01, 64]])))
    for written in ('[0.01, 64]', '[0.01,64]', ' [ 0.01, 64 ]', [0.01, 64]):
        assert space.parse({'x': written}) == {'x': 1}
    with pytest.raises(UserError, match=r'x must be one of \[0.1, 32\], \[0.01, 64\]'):
        space.parse({'x': '[0.01, 65]'})
