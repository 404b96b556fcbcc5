"""Weight sharing between the layers of a stack."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyglove as pg
import pytest

from tests.factories.parts import apply, init
from trainer.layers import (
    Attention,
    BatchNorm,
    Chain,
    Dropout,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Layer,
    Positions,
    Residual,
    SharedWithPrevious,
    Stack,
    TransformerLm,
    per_layer,
    stacked,
)
from trainer.layers.base import CACHE, ForwardContext, forward_context
from trainer.layers.periods import scanned_layers
from trainer.program.flops import flops
from trainer.symbolic.errors import UserError

X_BTD = jax.random.normal(jax.random.key(7), (2, 6, 8))


def feed_forward() -> Residual:
    return Residual(FeedForward(4))


def jitted_init(layer: Layer, x: Any) -> Any:
    return jax.jit(lambda x: init(layer, x))(x)


def train(layer: Layer, variables: Any, x: Any, collections: Any = ()) -> Any:
    with forward_context(ForwardContext(training=True)):
        module: Any = layer.module()
        rngs = {'dropout': jax.random.key(1)}
        return module.apply(variables, x, rngs=rngs, mutable=list(collections))


@pytest.mark.pax('shared_weight_layer_id')
def test_a_shared_layer_applies_the_previous_layer_again() -> None:
    other = Residual(GatedFeedForward(4))
    stack = Stack([feed_forward(), SharedWithPrevious(), SharedWithPrevious(), other])
    params = init(stack, X_BTD)['params']
    assert list(params) == ['layers_0', 'layers_3']
    wanted = X_BTD
    for _ in range(3):
        wanted = apply(feed_forward(), {'params': params['layers_0']}, wanted)
    wanted = apply(other, {'params': params['layers_3']}, wanted)
    np.testing.assert_allclose(apply(stack, {'params': params}, X_BTD), wanted, atol=1e-6)


@pytest.mark.slow
def test_a_scanned_run_of_shared_layers_is_the_unrolled_one() -> None:
    def stack(scan: Any) -> Stack:
        # Each application has its own dropout; the rates are those of each layer.
        dropped = [Residual(FeedForward(4), dropout=Dropout(rate)) for rate in (0.2, 0.6)]
        entries = [entry for layer in dropped for entry in (layer, SharedWithPrevious())]
        return Stack([*entries, feed_forward()], repeats=2, scan=scan)

    flat, packed = (jitted_init(stack(scan), X_BTD)['params'] for scan in ('never', 'always'))
    assert list(flat) == [f'layers_{i}' for i in (0, 2, 4, 5, 7, 9)]
    assert list(packed) == ['layers_0x2by5', 'layers_2x2by5', 'layers_4x2by5']
    jax.tree.map(np.testing.assert_array_equal, per_layer(packed), flat)
    jax.tree.map(np.testing.assert_array_equal, stacked(flat, stack('always')), packed)

    def gradients(scan: Any, params: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.sum(train(stack(scan), {'params': params}, X_BTD)[0] ** 2)

        return per_layer(jax.jit(jax.grad(loss))(params))

    jax.tree.map(
        lambda found, wanted: np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4),
        gradients('always', packed),
        gradients('never', flat),
    )


def test_the_names_of_the_layers_in_a_run() -> None:
    assert scanned_layers('layers_4x3by2') == ['layers_4', 'layers_6', 'layers_8']
    many = Stack([feed_forward(), SharedWithPrevious()], repeats=9)
    assert [part.name for part in many.storage()] == ['layers_0x9by2']


def test_layers_that_are_shared_differently_are_no_run() -> None:
    stack = Stack([feed_forward(), feed_forward(), SharedWithPrevious()], scan='always')
    assert [part.name for part in stack.storage()] == ['layers_0', 'layers_1']


def test_an_application_has_dropout_of_its_own() -> None:
    out, _ = train(Stack([Dropout(0.5), SharedWithPrevious()]), {}, jnp.ones((64, 64)))
    assert set(np.unique(out)) == {0.0, 4.0}
    assert np.mean(np.asarray(out) == 0) == pytest.approx(0.75, abs=0.05)


class Costly(Layer):
    """x -> x, at an auxiliary loss of one."""

    def forward(self, x: jax.Array) -> jax.Array:
        self.add_aux_loss('one', jnp.ones(()))
        return x


@pytest.mark.parametrize(('scan', 'repeats'), [('never', 1), ('always', 3)])
def test_each_application_adds_its_auxiliary_loss(scan: Any, repeats: int) -> None:
    stack = Stack([Costly(), SharedWithPrevious()], repeats=repeats, scan=scan)
    _, left = train(stack, {}, X_BTD, ['aux_loss'])
    assert sum(jnp.sum(loss) for loss in jax.tree.leaves(left)) == 2 * repeats


def test_each_application_takes_its_share_in_running_means() -> None:
    stack = Stack([BatchNorm(momentum=0.5), SharedWithPrevious()])
    variables = init(stack, X_BTD)
    _, left = train(stack, variables, X_BTD + 2, ['non_trainable'])
    # The first application halves the distance from 0 to the mean; its result has the mean 0.
    wanted = np.mean(X_BTD + 2, axis=(0, 1)) / 4
    np.testing.assert_allclose(left['non_trainable']['layers_0']['mean'], wanted, rtol=1e-4)


@pytest.mark.parametrize('scan', ['never', pytest.param('always', marks=pytest.mark.slow)])
@pytest.mark.slow
def test_each_application_decodes_with_a_cache_of_its_own(scan: Any) -> None:
    stack = Stack([Residual(Attention(2)), SharedWithPrevious()], repeats=2, scan=scan)
    model = TransformerLm(Embedding(11, 8), stack)
    ids_BT = jnp.array([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]])
    variables = jitted_init(model, ids_BT)
    wanted = jax.jit(model.module().apply)(variables, ids_BT)

    @jax.jit
    def extend(cache: Any, ids: Any, index: Any) -> Any:
        module: Any = model.module()
        with forward_context(ForwardContext(cache_length=6)):
            out, left = module.apply(variables | cache, ids, Positions(index), mutable=[CACHE])
        return left, out

    index_BT = jnp.broadcast_to(jnp.arange(6), (2, 6))
    cache, found = extend({}, ids_BT[:, :3], index_BT[:, :3])
    outs = [found]
    for at in range(3, 6):
        cache, found = extend(cache, ids_BT[:, at : at + 1], index_BT[:, at : at + 1])
        outs.append(found)
    np.testing.assert_allclose(jnp.concatenate(outs, axis=1), wanted, rtol=1e-4, atol=1e-5)


def test_operations_count_twice_and_parameters_once() -> None:
    def costs(layers: list[Layer]) -> tuple[int, int]:
        stack = Stack(layers)
        variables = init(stack, X_BTD)
        sizes = [leaf.size for leaf in jax.tree.leaves(variables)]
        return sum(sizes), flops(lambda x: apply(stack, variables, x), X_BTD)

    num_params, operations = costs([feed_forward()])
    assert costs([feed_forward(), SharedWithPrevious()]) == (num_params, 2 * operations)


def test_there_must_be_a_layer_before_it() -> None:
    with pytest.raises(ValueError, match=r'layers\[0\] is a SharedWithPrevious'):
        Stack([SharedWithPrevious(), feed_forward()], repeats=2)


@pytest.mark.parametrize(
    'layer', [Residual(SharedWithPrevious()), Chain([feed_forward(), SharedWithPrevious()])]
)
def test_a_shared_layer_outside_of_a_stack_is_refused(layer: Layer) -> None:
    with pytest.raises(UserError, match='must stand among the `layers` of a Stack'):
        init(layer, X_BTD)


def test_a_search_decides_what_is_shared() -> None:
    def layer() -> Any:
        return pg.oneof([Residual(Attention(2)), feed_forward(), SharedWithPrevious()])

    space = Stack([feed_forward(), layer(), layer()])
    made = list(pg.iter(space))
    assert len(made) == 9
    counts = [len(jax.eval_shape(lambda s=stack: init(s, X_BTD))['params']) for stack in made]
    assert counts == [3, 3, 2, 3, 3, 2, 2, 2, 1]
