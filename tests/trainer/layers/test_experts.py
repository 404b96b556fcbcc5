"""Mixtures of experts: against NumPy, capacity, losses of the router, decoding, packing."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import apply, init, token_by_token
from trainer.layers import (
    Attention,
    Experts,
    FeedForward,
    Linear,
    Positions,
    Router,
    TransformerBlock,
)
from trainer.layers.base import AUX_LOSS, SUMMARIES, ForwardContext, forward_context
from trainer.layers.grouped_product import grouped_product
from trainer.symbolic.errors import UserError

X_BTD = jax.random.normal(jax.random.key(1), (3, 8, 6))
EXPERTS = Experts(num_experts=4, hidden_dims=5)


def chosen(params: Any, x_D: np.ndarray, count: int) -> list[tuple[int, float]]:
    """The experts of a token with their weights."""
    scores = x_D @ params['router']['kernel']
    chances = np.exp(scores - scores.max())
    best = np.argsort(-chances)[:count]
    return [(int(i), float(chances[i] / chances[best].sum())) for i in best]


def by_numpy(params: Any, x_BTD: np.ndarray, places: int | None = None) -> np.ndarray:
    """The results of all tokens, one after another; an expert takes `places` tokens of a row."""
    out = np.zeros_like(x_BTD)
    for b, row in enumerate(x_BTD):
        taken = [0] * len(params['up'])
        for t, x_D in enumerate(row):
            for i, weight in chosen(params, x_D, 2):
                if places is not None and taken[i] == places:
                    continue
                taken[i] += 1
                gate = x_D @ params['gate'][i]
                hidden = gate / (1 + np.exp(-gate)) * (x_D @ params['up'][i])
                out[b, t] += weight * hidden @ params['down'][i]
    return out


def wide(params: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


@pytest.mark.pax('Mixture of experts')
@pytest.mark.parametrize(('factor', 'places'), [(None, None), (0.75, 3), (0.25, 1), (8.0, None)])
def test_tokens_have_the_results_of_numpy(factor: float | None, places: int | None) -> None:
    layer = EXPERTS.clone(override={'capacity_factor': factor})
    variables = init(layer, X_BTD)
    wanted = by_numpy(wide(variables['params']), np.asarray(X_BTD, np.float64), places)
    np.testing.assert_allclose(apply(layer, variables, X_BTD), wanted, rtol=1e-4, atol=1e-5)


def test_shared_experts_add_their_result_and_the_gate_can_be_left_out() -> None:
    shared = EXPERTS.clone(override={'shared': FeedForward(5)})
    variables = init(shared, X_BTD)
    params = dict(variables['params'])
    alone = {'params': params.pop('shared')}
    rest = apply(EXPERTS.clone(), {'params': params}, X_BTD)
    added = apply(FeedForward(5), alone, X_BTD)
    np.testing.assert_allclose(apply(shared, variables, X_BTD), rest + added, atol=1e-5)
    linear = EXPERTS.clone(override={'shared': Linear(6)})
    assert apply(linear, init(linear, X_BTD), X_BTD).shape == X_BTD.shape
    narrow = EXPERTS.clone(override={'shared': Linear(5)})
    with pytest.raises(UserError, match=r'shared \(Linear\): it makes \[3, 8, 5\] of \[3, 8, 6\]'):
        init(narrow, X_BTD)
    mixing = EXPERTS.clone(override={'shared': Attention(2)})
    assert [each.is_pointwise for each in (EXPERTS, linear, mixing)] == [True, True, False]
    plain = Experts(2, 5, router=Router(experts_per_token=2), gated=False)
    assert set(init(plain, X_BTD)['params']) == {'router', 'up', 'down'}


@pytest.mark.parametrize('factor', [None, 0.5])
def test_a_token_depends_on_no_later_one(factor: float | None) -> None:
    layer = EXPERTS.clone(override={'capacity_factor': factor})
    variables = init(layer, X_BTD)
    changed = X_BTD.at[:, 5:].set(jnp.cos(X_BTD[:, 5:]))
    whole, other = (apply(layer, variables, x) for x in (X_BTD, changed))
    np.testing.assert_allclose(whole[:, :5], other[:, :5], atol=1e-6)


def test_packed_rows_do_not_see_each_other_and_padding_takes_no_place() -> None:
    variables = init(EXPERTS, X_BTD)
    packed = Positions.packed(jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]] * 3))
    changed = X_BTD.at[:, :3].set(jnp.sin(X_BTD[:, :3]))
    whole, other = (apply(EXPERTS, variables, x, packed) for x in (X_BTD, changed))
    np.testing.assert_allclose(whole[:, 3:], other[:, 3:], atol=1e-6)
    # With a capacity, padding before a token does not push it out.
    layer = EXPERTS.clone(override={'capacity_factor': 0.25})
    late = Positions.packed(jnp.array([[0] * 7 + [1]] * 3))
    wanted = apply(EXPERTS, variables, X_BTD)[:, 7]
    np.testing.assert_allclose(apply(layer, variables, X_BTD, late)[:, 7], wanted, atol=1e-6)


def losses(layer: Experts, variables: Any, weights: Any = None) -> tuple[Any, Any]:
    context = ForwardContext(example_weights=weights)
    with forward_context(context):
        _, left = layer.module().apply(variables, X_BTD, mutable=[AUX_LOSS, SUMMARIES])
    return left[AUX_LOSS]['router'], left[SUMMARIES]


def test_the_router_has_the_losses_of_its_papers_without_padding() -> None:
    layer = EXPERTS.clone(override={'router': Router(balance_loss=0.5, z_loss=0.25)})
    variables = {'params': init(layer, X_BTD)['params']}
    found, summaries = losses(layer, variables, jnp.array([1.0, 1.0, 0.0]))
    x_ND = np.asarray(X_BTD[:2], np.float64).reshape(-1, 6)
    scores = x_ND @ wide(variables['params'])['router']['kernel']
    chances = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    top = np.argsort(-scores, axis=-1)[:, :2]
    share = np.array([(top == i).mean() for i in range(4)])
    assert found['balance'] == pytest.approx(0.5 * 4 * float(share @ chances.mean(0)), rel=1e-5)
    z = np.square(np.log(np.exp(scores).sum(-1))).mean()
    assert found['z'] == pytest.approx(0.25 * float(z), rel=1e-5)
    assert summaries['router']['busiest_expert'] == pytest.approx(4 * share.max(), rel=1e-5)
    # An example counts whole, also where not all of its positions have a weight.
    of_positions = jnp.zeros((3, 8)).at[:2, 3].set(1.0)
    assert losses(layer, variables, of_positions)[0] == found
    silent = EXPERTS.clone(override={'router': Router(balance_loss=None, z_loss=None)})
    with forward_context(ForwardContext()):
        _, left = silent.module().apply(variables, X_BTD, mutable=[AUX_LOSS])
    assert not left


@pytest.mark.parametrize('factor', [None, 0.5])
def test_decoding_token_by_token_equals_the_whole_pass(factor: float | None) -> None:
    layer, dropping_none = (
        TransformerBlock(Attention(1), EXPERTS.clone(override={'capacity_factor': each}))
        for each in (factor, None)
    )
    variables = init(layer, X_BTD)
    whole = apply(dropping_none, variables, X_BTD)
    written = token_by_token(layer, variables, X_BTD, [3, 5, 2])
    np.testing.assert_allclose(written, whole, rtol=1e-5, atol=1e-5)


def test_products_of_groups_are_mapped_with_their_gradients() -> None:
    x = jax.random.normal(jax.random.key(2), (2, 7, 3))
    kernels = jax.random.normal(jax.random.key(3), (2, 4, 3, 5))
    sizes = jnp.array([[2, 0, 4, 1], [0, 0, 7, 0]])

    def loss(product: Any, x: Any, kernels: Any, sizes: Any) -> Any:
        return jnp.sum(jnp.sin(product(x, kernels, sizes)))

    def plain(x: Any, kernels: Any, sizes: Any) -> Any:
        of = np.repeat(np.arange(4), np.asarray(sizes))
        return jnp.einsum('nd,ndf->nf', x, kernels[of])

    mapped = jax.jit(jax.vmap(jax.grad(functools.partial(loss, grouped_product), (0, 1))))
    found = mapped(x, kernels, sizes)
    for i in range(2):
        wanted = jax.grad(functools.partial(loss, plain), (0, 1))(x[i], kernels[i], sizes[i])
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one[i], other, rtol=1e-4, atol=1e-5)


def test_impossible_experts_are_refused() -> None:
    with pytest.raises(ValueError, match=r'router.experts_per_token \(3\) must be at most'):
        Experts(2, 8, router=Router(experts_per_token=3))
    for fields in ({'num_experts': 0}, {'hidden_dims': 0}, {'capacity_factor': 0.0}):
        with pytest.raises(ValueError, match='must'):
            Experts(**{'num_experts': 2, 'hidden_dims': 4} | fields)
