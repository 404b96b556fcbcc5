"""Choices between layers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import initializers

from tests.factories.parts import apply, init
from trainer.layers import (
    Attention,
    BatchNorm,
    Chain,
    ChoiceLayer,
    FeedForward,
    GatedFeedForward,
    Identity,
    Layer,
    Linear,
    Positions,
    Residual,
    Stack,
    TransformerBlock,
    per_layer,
)
from trainer.layers.base import (
    AUX_LOSS,
    CACHE,
    NON_TRAINABLE,
    SUMMARIES,
    ForwardContext,
    forward_context,
)
from trainer.symbolic.component import Number, bind
from trainer.symbolic.errors import UserError

X_BTD = jax.random.normal(jax.random.key(7), (2, 6, 8))


def candidates() -> list[Layer]:
    return [Residual(FeedForward(4)), Residual(GatedFeedForward(4)), Residual(Attention(2))]


def train(layer: Layer, variables: Any, seed: int = 1, collections: Any = ()) -> Any:
    with forward_context(ForwardContext(training=True)):
        rngs = {'dropout': jax.random.key(seed)}
        return layer.module().apply(variables, X_BTD, rngs=rngs, mutable=list(collections))


def alone(index: int, params: Any) -> Any:
    return apply(candidates()[index], {'params': params[f'candidates_{index}']}, X_BTD)


def test_a_choice_runs_the_candidate_with_its_own_parameters() -> None:
    layer = ChoiceLayer(candidates())
    params = init(layer, X_BTD)['params']
    assert list(params) == ['candidates_0', 'candidates_1', 'candidates_2']
    for index in range(3):
        result = apply(ChoiceLayer(candidates(), choice=index), {'params': params}, X_BTD)
        np.testing.assert_allclose(result, alone(index, params), atol=1e-6)
    np.testing.assert_allclose(apply(layer, {'params': params}, X_BTD), alone(0, params), atol=1e-6)


def test_a_choice_is_an_input_of_the_compiled_program() -> None:
    layer, compiled = ChoiceLayer(candidates()), 0
    variables = init(layer, X_BTD)

    @jax.jit
    def chosen(variables: Any, choice: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return apply(bind(layer, {'choice': choice}), variables, X_BTD)

    results = [chosen(variables, index) for index in range(3)]
    assert compiled == 1
    for index, result in enumerate(results):
        np.testing.assert_allclose(result, alone(index, variables['params']), atol=1e-6)


def test_training_draws_each_candidate_by_the_key_of_the_step() -> None:
    layer = ChoiceLayer(candidates())
    variables = init(layer, X_BTD)
    expected = [alone(index, variables['params']) for index in range(3)]

    def drawn(seed: int) -> int:
        result = train(layer, variables, seed)[0]
        return int(np.argmin([np.abs(result - each).max() for each in expected]))

    found = [drawn(seed) for seed in range(12)]
    assert set(found) == {0, 1, 2}
    assert found == [drawn(seed) for seed in range(12)]


@pytest.mark.parametrize('scan', ['never', 'always'])
def test_training_draws_anew_for_each_layer_of_a_stack(scan: Any) -> None:
    class Doubled(Layer):
        def forward(self, x: Any) -> Any:
            return 2 * x

    stack = Stack([ChoiceLayer([Identity(), Doubled()])], repeats=8, scan=scan)
    number = np.log2(np.median(train(stack, {})[0] / X_BTD))
    assert 0 < number < 8


def test_only_the_drawn_candidate_has_a_gradient() -> None:
    layer = ChoiceLayer(candidates(), choice=1)
    params = init(layer, X_BTD)['params']
    grads = jax.grad(lambda params: train(layer, {'params': params})[0].sum())(params)
    sizes = [float(sum(abs(leaf).sum() for leaf in jax.tree.leaves(grads[name]))) for name in grads]
    assert sizes[0] == sizes[2] == 0.0 < sizes[1]


@pytest.mark.parametrize('scan', ['never', 'always'])
def test_a_stack_of_choices_is_equal_scanned_and_unrolled(scan: Any) -> None:
    def stack(scan: Any) -> Stack:
        layers = [ChoiceLayer(candidates(), choice=index) for index in (2, 0, 1)]
        return Stack(layers, scan=scan)

    variables = init(stack(scan), X_BTD)
    positions = Positions.unpacked((2, 6))
    result = apply(stack(scan), variables, X_BTD, positions)
    params, expected = per_layer(variables['params']), X_BTD
    for index, chosen in enumerate((2, 0, 1)):
        own = {'params': params[f'layers_{index}'][f'candidates_{chosen}']}
        expected = apply(candidates()[chosen], own, expected, positions)
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_training_updates_the_state_of_the_drawn_candidate() -> None:
    layer = ChoiceLayer([Chain([Linear(8), BatchNorm()]), Chain([BatchNorm()])], choice=1)
    variables = init(layer, X_BTD)
    _, left = train(layer, variables, collections=[NON_TRAINABLE])
    before, after = variables[NON_TRAINABLE], left[NON_TRAINABLE]
    changed = jax.tree.map(lambda x, y: bool((x != y).any()), before, after)
    assert jax.tree.map(jax.numpy.shape, before) == jax.tree.map(jax.numpy.shape, after)
    assert not any(jax.tree.leaves(changed['candidates_0']))
    assert any(jax.tree.leaves(changed['candidates_1']))


def test_candidates_get_positions_only_where_they_take_them() -> None:
    block = TransformerBlock(ChoiceLayer([Linear(8), Attention(2)], choice=1), FeedForward(4))
    one = TransformerBlock(Attention(2), FeedForward(4))
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2]] * 2)
    positions = Positions(jnp.asarray([[0, 1, 2, 0, 1, 2]] * 2), segments)
    params = init(block, X_BTD, positions)['params']
    alone = {**params, 'attention': params['attention']['candidates_1']}
    expected = apply(one, {'params': alone}, X_BTD, positions)
    np.testing.assert_allclose(
        apply(block, {'params': params}, X_BTD, positions), expected, atol=1e-5
    )


def test_candidates_of_other_shapes_are_refused() -> None:
    layer = ChoiceLayer([Linear(8), Linear(4)])
    with pytest.raises(UserError, match=r'candidates\[1\] returns \(2, 6, 4\)'):
        init(layer, X_BTD)


def test_a_choice_beyond_the_candidates_is_refused() -> None:
    with pytest.raises(ValueError, match='choice is 3, of 3 candidates'):
        ChoiceLayer(candidates(), choice=3)
    with pytest.raises(ValueError, match='choice must be at least -1: -2'):
        ChoiceLayer(candidates(), choice=-2)
    with pytest.raises(ValueError, match='candidates must not be empty'):
        ChoiceLayer([])


class Balanced(Layer):
    """A layer with an auxiliary loss."""

    scale: Number = 1.0

    def forward(self, x: Any, *args: Any) -> Any:
        weight = self.param('weight', x.shape[-1:], ('norm',), initializers.ones)
        self.add_aux_loss('balance', self.scale * jnp.sum(weight))
        self.add_summary('mean', x.mean())
        return x * weight


def test_the_auxiliary_loss_of_the_candidate_that_runs_counts() -> None:
    parts = [Balanced(), Identity(), Stack([Balanced(2.0), Balanced(3.0)], scan='always')]
    variables = init(ChoiceLayer(parts), X_BTD)

    def aux_loss(choice: int, params: Any) -> Any:
        layer = ChoiceLayer([part.clone() for part in parts], choice=choice)
        _, left = train(layer, {'params': params}, collections=[AUX_LOSS, SUMMARIES])
        assert SUMMARIES not in left
        return sum(map(jnp.sum, jax.tree.leaves(left[AUX_LOSS])))

    params = variables['params']
    found = [float(aux_loss(choice, params)) for choice in range(3)]
    np.testing.assert_allclose(found, [8, 0, 5 * 8])
    gradients = jax.grad(lambda params: aux_loss(2, params))(params)
    assert not gradients['candidates_0']['weight'].any()
    np.testing.assert_allclose(gradients['candidates_2']['layers_0x2']['weight'][1], 3.0)


@pytest.mark.parametrize('scan', ['never', 'always'])
def test_auxiliary_losses_of_choices_in_a_stack_add_up(scan: Any) -> None:
    choices = [ChoiceLayer([Balanced(), Identity()], choice=index) for index in (0, 1, 0)]
    stack = Stack(choices, scan=scan)
    variables = {'params': init(stack, X_BTD)['params']}
    _, left = stack.module().apply(variables, X_BTD, mutable=[AUX_LOSS])
    assert sum(map(jnp.sum, jax.tree.leaves(left))) == 2 * 8


def test_candidates_without_auxiliary_losses_add_none() -> None:
    layer = ChoiceLayer([Identity(), Linear(8)])
    variables = {'params': init(layer, X_BTD)['params']}
    assert AUX_LOSS not in layer.module().apply(variables, X_BTD, mutable=[AUX_LOSS])[1]


def test_decoding_with_a_choice_is_refused() -> None:
    layer = ChoiceLayer(candidates())
    variables = init(layer, X_BTD)
    with (
        forward_context(ForwardContext(cache_length=8)),
        pytest.raises(UserError, match='cannot decode'),
    ):
        layer.module().apply(variables, X_BTD, mutable=[CACHE])
