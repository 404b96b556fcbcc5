from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.tiny import experiment
from tests.properties import examples
from trainer.layers import Attention, FeedForward
from trainer.loop import train_loop
from trainer.symbolic import literals, overrides
from trainer.symbolic.component import (
    Component,
    Number,
    Numbers,
    OptionalNumber,
    components,
    numbers,
)
from trainer.symbolic.concrete import concrete, require_concrete
from trainer.symbolic.derived import Derived, check_names, derived, derived_values, resolve
from trainer.symbolic.errors import UserError
from trainer.symbolic.expressions import Expression
from trainer.symbolic.serialization import from_json_text, to_json_text


class Heads(Component):
    """A head size that must fit."""

    heads: int = 2
    head_dim: int = 8
    rate: Number = 0.1
    decay: OptionalNumber = None
    kind: str = 'full'
    window: int | None = None
    size: int | str = 1

    def check(self) -> None:
        if self.heads * self.head_dim > 1000:
            raise ValueError(f'{self.heads} heads of {self.head_dim} are too large')


class Net(Component):
    """A model around it."""

    width: int = 16
    part: Any = None
    scales: Numbers = {}
    sizes: list[int] = []
    shared: dict[str, Any] = {}
    smoke: dict[str, Any] = {}


@pytest.mark.pax('BaselineExperiment')
def test_a_value_follows_its_neighbour_and_what_it_is_part_of():
    net = resolve(Net(64, Heads(heads=4, head_dim=derived('width // heads'))))
    assert net.part == Heads(heads=4, head_dim=16)


@pytest.mark.parametrize(
    ('field', 'expression', 'expected'),
    [
        ('head_dim', 'width / heads', 32),
        ('rate', 'heads', 2.0),
        ('decay', 'heads / 4', 0.5),
        ('decay', 'null', None),
        ('kind', '"full" if heads > 1 else "one"', 'full'),
        ('window', 'width * 2.0', 128),
        ('window', 'null', None),
        ('size', 'heads / 2', 1),
        ('size', 'kind', 'full'),
        ('rate', 'part.heads * width', 128.0),
    ],
)
def test_a_result_is_of_the_type_of_its_field(field, expression, expected):
    net = resolve(Net(64, Heads(**{field: derived(expression)})))
    value = net.part.sym_getattr(field)
    assert value == expected
    assert type(value) is type(expected)


def test_items_of_lists_and_mappings():
    net = Net(
        3,
        scales={'a': derived('width'), 'b': derived('a / 2')},
        sizes=[1, derived('sizes[0] + 1'), derived('sizes[-2] * width')],
    )
    net = resolve(net)
    assert net.scales == {'a': 3.0, 'b': 1.5}
    assert net.sizes == [1, 2, 6]
    assert numbers(net) == {'scales.a': 3.0, 'scales.b': 1.5}


def test_the_nearest_owner_that_has_the_name():
    inner = pg.Dict(width=2, part=pg.Dict(value=derived('width')))
    assert resolve(pg.Dict(width=1, part=inner)).part.part.value == 2


def test_the_field_itself_does_not_count():
    inner = pg.Dict(width=derived('width * 2'))
    assert resolve(pg.Dict(width=8, inner=inner)).inner.width == 16


def test_derived_values_of_derived_values():
    value = pg.Dict(a=derived('b + 1'), b=derived('c + 1'), c=1, d=derived('a * b'))
    assert resolve(value) == pg.Dict(a=3, b=2, c=1, d=6)


def test_a_component_is_copied():
    net = Net(part=derived('shared.heads'), shared={'heads': Heads(heads=4)})
    net = resolve(net)
    assert net.part == net.shared['heads']
    assert net.part is not net.shared['heads']
    places = [id(component) for component in components(net)]
    assert len(set(places)) == len(places)
    assert net.part.sym_path == 'part'


def test_a_shared_component_follows_what_is_around_its_place():
    shared = {'heads': Heads(heads=4, head_dim=derived('width // heads'))}
    value = pg.Dict(
        shared=shared,
        one=pg.Dict(width=64, part=derived('shared.heads')),
        two=pg.Dict(width=128, part=derived('shared.heads'), dim=derived('part.head_dim + 1')),
    )
    value = resolve(value)
    assert (value.one.part.head_dim, value.two.part.head_dim, value.two.dim) == (16, 32, 33)
    assert value.shared == {}
    assert not list(derived_values(value))


class Holder(Component):
    """Has no width itself."""

    part: Any = None
    shared: dict[str, Any] = {}

    def check(self) -> None:
        if self.part.width > 100:
            raise ValueError('too wide')


def test_incomplete_objects_are_left_out_at_the_end():
    shared = {'x': 1, 'heads': Heads(heads=4, head_dim=derived('width // heads'))}
    inner = pg.Dict(width=pg.oneof([64, 128]), part=derived('shared.heads'))
    open_ = resolve(Holder(inner, shared))
    assert set(open_.shared) == {'x', 'heads'}
    made = resolve(pg.materialize(open_, pg.DNA(0)))
    assert made.part.part.head_dim == 16
    assert made.shared == {'x': 1}
    assert not made.sym_puresymbolic
    with pytest.raises(ValueError, match='too wide'):
        resolve(pg.materialize(open_, pg.DNA(1)))


def test_overrides_that_wait_are_left_alone():
    net = Net(smoke={'part.head_dim': derived('heads * 2')}, part=Heads())
    assert resolve(net) is net


def test_nothing_to_do_costs_nothing():
    net = Net(64, Heads())
    assert resolve(net) is net


def test_the_value_itself_is_left_as_it_is():
    net = Net(64, Heads(head_dim=derived('width')))
    resolve(net)
    assert isinstance(net.part.head_dim, Derived)


def test_undecided_values_stay():
    net = Net(
        pg.oneof([64, 128]),
        pg.oneof([Heads(head_dim=derived('width // heads')), None]),
        scales={'a': derived('width / 2'), 'b': derived('a + 1'), 'c': derived('shared.x')},
        sizes=[derived('part.heads'), derived('shared.x')],
        shared={'x': 3, 'y': derived('part')},
    )
    resolved = resolve(net)
    left = {str(place.sym_path) for place in derived_values(resolved)}
    assert left == {'scales.a', 'scales.b', 'sizes[0]', 'shared.y'}
    assert resolved.sizes[1] == 3
    assert isinstance(resolved.part, pg.hyper.OneOf)
    made = resolve(pg.materialize(resolved, pg.DNA([1, 0])))
    assert not list(derived_values(made))
    assert (made.part.head_dim, made.scales.b, made.sizes) == (64, 65.0, [2, 3])
    assert made.shared.y == made.part


def test_a_missing_value_is_one_that_is_still_open():
    partial = pg.Dict(net=Heads.partial(heads=pg.MISSING_VALUE), x=derived('net.heads'))
    assert resolve(partial).x == 2  # The default.

    class Needs(Component):
        y: int

    partial = pg.Dict(net=Needs.partial(), x=derived('net.y'))
    assert isinstance(resolve(partial).x, Derived)


def test_checks_run_when_everything_is_in_place():
    # With either of them alone, there are too many heads for the other's default.
    net = Net(2, Heads(heads=derived('width * 100'), head_dim=derived('width + 1')))
    assert resolve(net).part.heads == 200
    with pytest.raises(ValueError, match='200 heads of 8 are too large'):
        resolve(Net(2, Heads(heads=derived('width * 100'))))


@pytest.mark.parametrize(
    ('expression', 'message'),
    [
        ('heads / 3', r"part.head_dim: derived\('heads / 3'\): expected an integer, got 0.66"),
        ('width // (heads - 2)', r"part.head_dim: derived\('.*'\): .*division.* by zero"),
        ('kind', "part.head_dim: .* expected an integer, got 'full'"),
        ('heads == 2', 'part.head_dim: .* expected an integer, got true'),
        ('kind * 2', 'part.head_dim: .* expected a number, got str'),
        ('null', 'part.head_dim: .* expected an integer, got null'),
        ('sizes', 'part.head_dim: .* expected an integer'),
        ('2 ** 10 ** 10', 'part.head_dim: .* the result is too large'),
    ],
)
def test_results_that_do_not_fit(expression, message):
    with pytest.raises(ValueError, match=message):
        resolve(Net(64, Heads(head_dim=derived(expression))))


@pytest.mark.parametrize(
    ('expression', 'message'),
    [
        ('widht * 2', 'part.head_dim: .* names widht, which is no field here.* Did you mean width'),
        ('part.head', 'names part.head, which does not exist. Did you mean heads or head_dim'),
        ('width.x', 'names width.x, which does not exist. width is 64'),
        ('sizes[3]', r'names sizes\[3\], which does not exist. sizes is a list of 0 items'),
        ('sizes.x', 'names sizes.x, which does not exist'),
        ('part[0]', r'names part\[0\], which does not exist'),
        ('head_dim', 'names head_dim, which is no field here'),
        ('part.head_dim', 'part.head_dim: derived values that follow from themselves'),
        ('part', 'part.head_dim: derived values that follow from themselves'),
        ('rate', 'part.head_dim, part.rate: derived values that follow from themselves'),
    ],
)
def test_names_of_what_is_not_there_and_circles(expression, message):
    net = Net(64, Heads(head_dim=derived(expression), rate=derived('head_dim')))
    with pytest.raises(UserError, match=message):
        resolve(net)
    with pytest.raises(UserError, match=message):
        check_names(net)


def test_long_chains_are_refused():
    chain = [0] + [derived(f'sizes[{i}] + 1') for i in range(300)]
    with pytest.raises(UserError, match='follows from too many others'):
        resolve(Net(sizes=[derived(f'sizes[{i + 1}]') for i in range(300)] + [0]))
    assert resolve(Net(sizes=chain)).sizes[-1] == 300  # Read from its beginning.


def test_names_are_checked_inside_candidates_and_only_where_they_are_sure_to_be_read():
    inner = Heads(head_dim=derived('heads * widht'))
    with pytest.raises(UserError, match=r'part.*names widht'):
        check_names(Net(part=pg.oneof([None, inner])))
    check_names(Net(part=pg.oneof([None, Heads(head_dim=derived('part.heads * width'))])))
    check_names(Net(pg.oneof([1, 2]), Heads(head_dim=derived('x if width == 3 else 8'))))


def test_an_expression_is_read_when_it_is_written():
    with pytest.raises(UserError, match=r"cannot read 'f\(…\)'"):
        derived('f(2)')
    with pytest.raises(TypeError):
        derived(3)  # type: ignore[arg-type]


def test_json_brings_it_back():
    net = Net(64, Heads(head_dim=derived('width // heads')), smoke={'x': derived('1 + 1')})
    again = from_json_text(to_json_text(net), Net)
    assert pg.eq(again, net)
    assert resolve(again).part.head_dim == 32


def test_json_with_what_is_no_expression_is_refused():
    text = to_json_text(Net(part=derived('width'))).replace('"width"\n', '"width()"\n')
    assert 'width()' in text
    with pytest.raises(UserError, match=r'study.json: cannot read'):
        from_json_text(text, Net, source='study.json')


def test_it_is_shown_as_it_is_written():
    assert repr(derived('a  // b')) == "derived('a  // b')"


def test_set_on_the_command_line():
    made = experiment()
    flag = "task.model.stack.layers[0].attention.head_dim=derived('embedding.dims // num_heads')"
    made = overrides.override(made, [flag])
    attention = made.task.model.stack.layers[0].attention
    assert isinstance(attention.head_dim, Derived)
    # Later overrides are followed.
    made = overrides.override(made, ['task.model.embedding.dims=64'])
    assert resolve(made).task.model.stack.layers[0].attention.head_dim == 32
    with pytest.raises(UserError, match='set it as a whole'):
        overrides.override(made, [f'{attention.sym_path}.head_dim.expression=3'])


def test_a_bad_expression_on_the_command_line():
    with pytest.raises(UserError, match=r"--set x: derived: cannot read 'f\(…\)'"):
        literals.parse("derived('f(x)')", '--set x')
    assert literals.parse("[derived('a'), 1]", 'x') == [derived('a'), 1]


def test_it_may_stand_in_any_field_of_a_layer():
    layer = pg.Dict(dims=8, layer=FeedForward(hidden_dims=derived('4 * dims')))
    assert resolve(layer).layer == FeedForward(hidden_dims=32)


def test_commands_resolve_and_say_what_is_left():
    made = experiment()
    made.rebind({'train.num_train_steps': derived('evaluation.every * 3')})
    assert concrete(made).train.num_train_steps == 6
    with pytest.raises(
        UserError, match=r'1 derived values are not resolved: train.num_train_steps'
    ):
        require_concrete(made)
    made.rebind({'train.evaluation.every': pg.oneof([1, 2])})
    with pytest.raises(UserError, match=r'1 decisions are left open: train.evaluation.every'):
        concrete(made)


@pytest.mark.parametrize(
    ('value', 'message'),
    [
        ("derived('evaluation.every / 4')", 'train.num_train_steps: .*expected an integer'),
        ("derived('evaluation.every - 2')", 'train: num_train_steps must be at least 1: 0'),
        ("derived('evaluation.evry')", 'names evaluation.evry.*Did you mean every'),
    ],
)
def test_commands_say_where_a_derived_value_does_not_fit(value, message):
    made = overrides.override(experiment(), [f'train.num_train_steps={value}'])
    with pytest.raises(UserError, match=message):
        concrete(made)


def test_training_resolves(tmp_path):
    made = experiment()
    made.rebind(
        {
            'train.num_train_steps': derived('train.evaluation.every'),
            'task.learner.learning_rate': derived('0.1 / train_input.batch_size'),
            'eval_inputs.eval.batch_size': derived('train_input.batch_size'),
        }
    )
    (measurement,) = train_loop.run(made, str(tmp_path))
    assert measurement.step == 2
    assert '"learning_rate": 0.0125' in (tmp_path / 'experiment.json').read_text()


def _terms(names: list[str]) -> st.SearchStrategy[str]:
    term = st.sampled_from([*names, '1', '2', '3'])
    return st.tuples(term, st.sampled_from(['+', '-', '*']), term).map(' '.join)


@st.composite
def _networks(draw: st.DrawFn) -> pg.Dict:
    """Values of which some follow from earlier ones, in three layers of owners, some open."""
    number = st.integers(-5, 5)
    base = st.one_of(number, st.lists(number, min_size=1, max_size=3).map(pg.oneof))
    outer = {'a': draw(base), 'b': draw(base)}
    middle = {'c': derived(draw(_terms(['a', 'b']))), 'd': draw(base)}
    inner = {'e': derived(draw(_terms(['a', 'c', 'd']))), 'b': draw(base)}
    inner['f'] = derived(draw(_terms(['b', 'e', 'middle.c', 'middle.inner.e'])))
    choice = pg.oneof([pg.Dict(inner), pg.Dict(inner)]) if draw(st.booleans()) else pg.Dict(inner)
    return pg.Dict(**outer, middle=pg.Dict(**middle, inner=choice))


@examples(60)
@given(_networks(), st.randoms(use_true_random=False))
def test_results_are_those_of_the_expressions(value, rng):
    spec = pg.dna_spec(value)
    made = pg.materialize(value, spec.random_dna(rng)) if spec.elements else value
    resolved = resolve(made)
    assert not list(derived_values(resolved))
    places = list(derived_values(made))
    assert len(places) == 3
    for place in places:

        def look_up(path, place=place):
            owners = [
                resolved.sym_get(pg.KeyPath(place.sym_path.keys[:depth]))
                for depth in reversed(range(len(place.sym_path.keys)))
            ]
            found = next(owner for owner in owners if path[0] in owner)
            return found.sym_get(pg.KeyPath(list(path)))

        expected = Expression(place.expression).evaluate(look_up)
        assert resolved.sym_get(place.sym_path) == expected


def test_a_head_size_that_follows_open_decisions_everywhere():
    attention = pg.oneof(
        [
            Attention(num_heads=pg.oneof([2, 4]), head_dim=derived('embedding.dims // num_heads')),
            Attention(num_heads=1, head_dim=derived('embedding.dims')),
        ]
    )
    made = experiment(
        task__model__embedding__dims=pg.oneof([16, 32]),
        task__model__stack__layers=[pg.oneof([attention, pg.oneof([attention])])],
    )
    seen = set()
    for dna in pg.dna_spec(made).iter_dna():
        model = resolve(pg.materialize(made, dna)).task.model
        layer = model.stack.layers[0]
        assert layer.head_dim * layer.num_heads == model.embedding.dims
        seen.add((model.embedding.dims, layer.num_heads))
    assert seen == {(dims, heads) for dims in (16, 32) for heads in (1, 2, 4)}


def test_arithmetic_on_derived_values_computes_the_same():
    width = derived('width')
    forms = [2 * width + 1, (width - 1) % 5, -1.5 * (7 - width), 2**width // 3, (width / 4) ** 2]
    values = resolve(pg.Dict(width=8, forms=forms, second=derived('forms')[1]))
    assert values.forms == [17, 2, 1.5, 85, 4.0]
    assert values.second == 2


def test_a_derived_value_is_no_condition_and_no_sequence():
    with pytest.raises(TypeError, match=r"derived\('width'\) is true or false only in a trial"):
        bool(derived('width'))
    with pytest.raises(TypeError, match='not iterable'):
        list(derived('width'))
    with pytest.raises(TypeError, match='unsupported operand'):
        derived('width') * None
