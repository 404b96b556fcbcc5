import random
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms.encoding.sampling import draw
from paxtune.algorithms.evolution.layer_lists import (
    LayerList,
    active_layer_lists,
    draw_layer_list,
    layer_lists,
)
from paxtune.search_space.decisions import Decisions, to_dna
from tests.factories import spaces
from tests.properties import examples
from trainer.symbolic.ranges import intv


def _names(value: Any) -> list[list[str]]:
    return [[slot.prefix for slot in each.slots] for each in layer_lists(pg.dna_spec(value))]


def _one() -> Any:
    return pg.oneof([1, 2])


@pytest.mark.parametrize(
    ('value', 'names'),
    [
        (pg.Dict(x=_one()), []),
        (pg.Dict(x=[_one(), 3]), []),
        (pg.Dict(x=[_one(), 3, _one()]), [['x[0]', 'x[2]']]),
        (pg.List([_one(), _one()]), [['[0]', '[1]']]),
        (pg.Dict(x=[pg.Dict(y=_one(), z=_one()), _one()]), [['x[0]', 'x[1]']]),
        (pg.Dict({'a.b': [_one(), _one()]}), [['[a.b][0]', '[a.b][1]']]),
        (pg.Dict(x=pg.manyof(2, [1, 2, 3], distinct=False)), [['x[0]', 'x[1]']]),
        (pg.Dict(x=pg.manyof(2, [1, 2, 3])), []),
        (pg.Dict(x=pg.manyof(2, [1, 2, 3], distinct=False, sorted=True)), []),
        (pg.Dict(x=pg.permutate([1, 2, 3])), []),
        (
            pg.Dict(x=[pg.Dict(heads=[_one(), _one()]), _one()]),
            [['x[0]', 'x[1]'], ['x[0].heads[0]', 'x[0].heads[1]']],
        ),
        (
            pg.Dict(x=pg.oneof([None, pg.Dict(layers=[_one(), _one()])])),
            [['x[=1/2].layers[0]', 'x[=1/2].layers[1]']],
        ),
        (
            pg.Dict(x=pg.permutate([pg.List([_one(), _one()]), 1])),
            [[f'x[{i}][=0/2][{j}]' for j in range(2)] for i in range(2)],
        ),
    ],
)
def test_layer_lists_have_several_elements_with_decisions(value, names):
    assert _names(value) == names


def test_more_than_nine_layers_keep_their_order():
    value = pg.Dict(layers=[pg.oneof([1, pg.oneof([2, 3])]) for _ in range(12)])
    spec = pg.dna_spec(value)
    (layer_list,) = layer_lists(spec)
    assert [slot.prefix for slot in layer_list.slots] == [f'layers[{i}]' for i in range(12)]
    decisions = draw(spec, random.Random(0))
    order = [*range(1, 12), 0]
    child = layer_list.rearrange(spec, decisions, order, random.Random(0))
    assert _layers(value, child) == [_layers(value, decisions)[index] for index in order]


def _layers(value: Any, decisions: Decisions) -> list[Any]:
    """The layers of the experiment that decisions make."""
    return list(pg.materialize(value, to_dna(pg.dna_spec(value), decisions)).layers)


@examples(12)
@given(spaces.layer_spaces(), st.integers(0, 2**32))
def test_a_layer_moves_where_it_fits_and_other_decisions_stay(value, seed):
    spec = pg.dna_spec(value)
    rng = random.Random(seed)
    parent = draw(spec, rng)
    before = dict(parent)
    for layer_list in active_layer_lists(spec, parent):
        order = [rng.choice([*range(len(layer_list)), None]) for _ in layer_list.slots]
        child = layer_list.rearrange(spec, parent, order, random.Random(seed))
        assert parent == before
        assert list(to_dna(spec, child).to_dict()) == list(child)
        assert layer_list.rearrange(spec, parent, order, random.Random(seed)) == child
        inside = tuple(slot.prefix for slot in layer_list.slots)
        changed = {id_ for id_ in {**parent, **child} if parent.get(id_) != child.get(id_)}
        assert all(id_.startswith(inside) for id_ in changed)
        if inside[0].startswith('layers') and inside[0].count('[') == 1:
            _check_layers(value, parent, child, layer_list, order)


def _check_layers(
    value: Any, parent: Decisions, child: Decisions, layer_list: LayerList, order: list[int | None]
) -> None:
    """Where specs are alike, layers of the experiment have moved as the order says."""
    at = [int(slot.prefix.removeprefix('layers[').rstrip(']')) for slot in layer_list.slots]
    specs = value.sym_getattr('layers')
    old, new = _layers(value, parent), _layers(value, child)
    for slot, index in enumerate(order):
        if index is not None and pg.eq(specs.sym_getattr(at[slot]), specs.sym_getattr(at[index])):
            assert pg.eq(new[at[slot]], old[at[index]])


def _moved(one: Any, other: Any, parent: Decisions) -> list[Any]:
    """Layers that the second slot may get from the first."""
    value = pg.Dict(layers=[one, other])
    spec = pg.dna_spec(value)
    (layer_list,) = layer_lists(spec)
    children = [
        layer_list.rearrange(spec, parent, [0, 0], random.Random(seed)) for seed in range(60)
    ]
    return [_layers(value, child)[1] for child in children]


@pytest.mark.parametrize(
    ('one', 'other', 'index', 'expected'),
    [
        (pg.oneof([1, 2, 3]), pg.oneof([1, 2, 3]), 2, {3}),
        (pg.oneof([1, 2, 3]), pg.oneof([1, 2, 4]), 1, {1, 2, 4}),  # Other candidates: drawn.
        (pg.oneof([1, 2, 3]), pg.oneof([1, 2]), 0, {1, 2}),
        (pg.oneof([True, 2]), pg.oneof([1, 2]), 0, {1, 2}),
        (intv(1, 9), intv(1, 5), 4, {4}),
        (intv(1, 9), intv(1, 3), 7, {1, 2, 3}),  # Outside of the range: drawn.
        (pg.oneof(['1', '2']), pg.oneof([1, 2]), 1, {1, 2}),
        (intv(0, 2), pg.oneof([5, 6, 7]), 1, {5, 6, 7}),
    ],
)
@pytest.mark.fast(2)
def test_only_equal_genes_move(one, other, index, expected):
    first = {'layers[0]': index, 'layers[1]': 0 if isinstance(other, pg.hyper.Choices) else 1}
    assert set(_moved(one, other, first)) == expected


@pytest.mark.slow
def test_fitting_genes_of_a_layer_move():
    def layer(widths: list[int], rates: list[float]) -> Any:
        return pg.oneof(
            [pg.Dict(width=pg.oneof(widths), rate=pg.oneof(rates)), pg.Dict(none=pg.oneof([0]))]
        )

    parent: Decisions = {
        'layers[0]': 0,
        'layers[0][=0/2].width': 1,
        'layers[0][=0/2].rate': 2,
        'layers[1]': 1,
        'layers[1][=1/2].none': 0,
    }
    rates = [0.1, 0.2, 0.3]
    moved = _moved(layer([64, 128, 256], rates), layer([32, 64, 128], rates), parent)
    assert {each.rate for each in moved} == {0.3}
    assert {each.width for each in moved} == {32, 64, 128}


@pytest.mark.slow
def test_conditional_decisions_do_not_move_without_their_choice():
    inside = pg.oneof(list(range(20)))
    one = pg.oneof([pg.Dict(x=inside), 'a'])
    other = pg.oneof([pg.Dict(x=pg.clone(inside, deep=True)), 'b'])
    parent: Decisions = {'layers[0]': 0, 'layers[0][=0/2].x': 7, 'layers[1]': 1}
    moved = _moved(one, other, parent)
    assert 'b' in moved
    assert len({each.x for each in moved if each != 'b'}) > 8


def test_a_layer_list_inside_a_candidate_is_active_with_it():
    spec = pg.dna_spec(pg.Dict(x=pg.oneof([None, [_one(), _one()]]), y=[_one(), _one()]))
    without: Decisions = {'x': 0, 'y[0]': 0, 'y[1]': 0}
    having = without | {'x': 1, 'x[=1/2][0]': 0, 'x[=1/2][1]': 0}
    inner, outer = layer_lists(spec)
    assert active_layer_lists(spec, without) == [outer]
    assert active_layer_lists(spec, having) == [inner, outer]


def test_layers_of_all_lists_have_equal_probability():
    value = pg.Dict(x=[_one() for _ in range(2)], y=[_one() for _ in range(6)])
    among = layer_lists(pg.dna_spec(value))
    rng = random.Random(0)
    drawn = [len(draw_layer_list(among, rng)) for _ in range(400)]
    assert 260 < drawn.count(6) < 340
