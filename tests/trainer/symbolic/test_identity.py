"""One layer object in two places is refused: PyGlove would silently make two sets of weights."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pyglove as pg
import pytest

from paxtune.search_space.space import Space
from tests.factories.tiny import experiment
from trainer.layers import (
    Attention,
    Chain,
    FeedForward,
    Layer,
    LayerNorm,
    Linear,
    Residual,
    Stack,
    TransformerBlock,
)
from trainer.learner import AdamW
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError
from trainer.symbolic.identity import validate_decisions
from trainer.symbolic.ranges import intv


def rebound(layer: Layer) -> Layer:
    chain = Chain([Linear(2), layer])
    return chain.rebind({'layers[0]': chain.layers[1]})


def in_chains(layer: Layer) -> Layer:
    first, second = Chain([layer]), Chain([layer, Linear(2)])
    return Chain([first, second])


def two_fields(norm: LayerNorm) -> Layer:
    return TransformerBlock(
        Attention(2), FeedForward(8), attention_norm=norm, feed_forward_norm=norm
    )


MISTAKES: list[tuple[Callable[[Any], object], str]] = [
    (lambda x: Chain([x, x]), 'layers[0] and layers[1]'),
    (lambda x: Chain([Residual(x), Residual(x)]), 'layers[0].layer and layers[1].layer'),
    (lambda x: Chain([Residual(x), x]), 'layers[0].layer and layers[1]'),
    (lambda x: Stack([x, Linear(2)] * 2), 'layers[0] and layers[2]'),
    (lambda x: Chain([Linear(2)]).rebind(layers=[x, x]), 'layers[0] and layers[1]'),
    (rebound, 'layers[0] and layers[1]'),
    (in_chains, 'layers[0].layers[0] and layers[1].layers[0]'),
    (two_fields, 'attention_norm and feed_forward_norm'),
    (lambda x: experiment(task__model__stack__layers=[x, x]), '.layers[0] and task.'),
]


@pytest.mark.parametrize(('make', 'paths'), MISTAKES)
def test_one_layer_in_two_places_is_refused_with_both_paths(
    make: Callable[[Any], object], paths: str
) -> None:
    with pytest.raises(UserError) as refused:
        make(LayerNorm())
    message = str(refused.value)
    assert paths in message
    assert 'are one LayerNorm object' in message
    assert 'SharedWithPrevious()' in message
    assert 'layer.clone()' in message


def test_copies_and_templates_are_accepted() -> None:
    layer = Linear(3)
    Chain([layer, layer.clone(), Stack([Residual(Linear(3))], repeats=2)])
    # In another tree, and moved within its own tree.
    chain = Chain([Linear(2), layer])
    chain.rebind(layers=[Linear(2), *chain.layers])
    kinds = [Linear(3), Linear(4)]
    space = Space(Chain([pg.oneof(kinds), pg.oneof(kinds)]))
    made = space.materialize({id_: 0 for id_ in space.ids})
    assert made == Chain([Linear(3), Linear(3)])


def test_values_without_weights_may_occur_twice() -> None:
    pg.Dict(first=(optimizer := AdamW()), second=optimizer)
    data = experiment().eval_inputs['eval']
    assert len(experiment(eval_inputs={'a': data, 'b': data}).eval_inputs) == 2


def test_nothing_is_remembered_of_objects_that_are_gone() -> None:
    layer = Linear(3)
    kept = [Chain([layer]), Chain([layer])]
    gone = [weakref.ref(each) for each in (layer, *kept, *(chain.layers[0] for chain in kept))]
    del layer, kept
    gc.collect()
    assert [each() for each in gone] == [None] * 5


class Part(Component):
    """Two fields for decisions."""

    size: int = 1
    other: int = 1


class Whole(Component):
    """Two parts."""

    first: Part
    second: Part


def changed(decision: Any) -> Whole:
    whole = Whole(Part(), Part())
    whole.first.rebind(size=decision)
    whole.second.rebind(size=decision)
    return whole


@pytest.mark.parametrize(
    ('make', 'paths'),
    [
        (lambda one: Part(one, one), 'size and other'),
        (lambda one: Whole(Part(one), Part(one)), 'first.size and second.size'),
        (lambda one: Chain([Linear(one), Linear(one)]), r'layers\[0\].output_dims and layers\[1\]'),
        (changed, 'first.size and second.size'),
        (
            lambda one: Whole(pg.oneof([Part(one), Part()]), pg.oneof([Part(one), Part()])),
            'first.size and second.size',
        ),
        (lambda one: validate_decisions({'x': one, 'y': [{'z': one}]}), r'x and y\[0\].z'),
        (lambda one: validate_decisions({'x': one, 'y': pg.oneof([{'z': one}, 1])}), 'x and y.z'),
    ],
)
def test_one_decision_in_two_places_is_refused(make: Callable[[Any], Any], paths: str) -> None:
    for one in (intv(1, 3), pg.oneof([1, 2])):
        with pytest.raises(UserError, match=f'{paths}.* are one decision object.*name='):
            make(one)


def test_one_decision_may_have_a_name_and_other_trees() -> None:
    named, one = pg.oneof([1, 2], name='size'), pg.oneof([1, 2])
    Whole(Part(named), Part(named))
    validate_decisions({'x': named, 'y': named})
    Whole(Part(one), Part(one.clone()))
    Whole(Part(one), Part(3))
    # One of the candidates is chosen.
    Whole(pg.oneof([Part(one), Part(other=one)]), Part())
    validate_decisions({'x': pg.oneof([{'y': one}, {'z': one}])})
    Whole(Part(pg.oneof([1, 2])), Part(pg.oneof([1, 2]))).clone(deep=True)
