import math
from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import applied, new_params, rotated
from trainer import layers
from trainer.layers import (
    Attention,
    BatchNorm,
    Dropout,
    Embedding,
    FeedForward,
    GatedFeedForward,
    GroupNorm,
    Layer,
    LayerNorm,
    LearnedPositions,
    Linear,
    Positions,
    Residual,
    RMSNorm,
    Rotary,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.layers.activations import ActivationName, activate
from trainer.layers.base import ForwardContext, forward_context
from trainer.symbolic.component import key
from trainer.symbolic.errors import UserError

X_BTD = jax.random.normal(jax.random.key(7), (2, 6, 8))


@pytest.mark.pax('A layer is a flax')
def test_weights_stand_at_the_path_of_their_layer() -> None:
    block = TransformerBlock(Attention(2), FeedForward(4))
    model = TransformerLm(Embedding(5, 8), Stack([block], repeats=2, scan='always'))
    params = new_params(model, jnp.zeros((1, 3), jnp.int32))
    assert params['embedding']['table'].shape == (5, 8)
    assert params['stack']['layers_0x2']['feed_forward']['up'].shape == (2, 8, 4)
    each = layers.per_layer(params)
    assert each['stack']['layers_1']['feed_forward']['up'].shape == (8, 4)


def test_a_layer_whose_owner_is_not_running_is_refused() -> None:
    with pytest.raises(ValueError, match='its owner is not running'):
        Residual(FeedForward(8)).layer(X_BTD)

    class Maker(Layer):
        def forward(self, x: jax.Array) -> Any:
            return Linear(8)(x)

    with pytest.raises(ValueError, match='never created inside `forward`'):
        new_params(Maker(), X_BTD)


def test_a_layer_that_is_handed_down_keeps_its_owners_weights() -> None:
    class Head(Layer):
        def forward(self, x: jax.Array, embedding: Embedding) -> Any:
            return embedding.call('attend', x)

    class Model(Layer):
        embedding: Embedding
        head: Head = Head()

        def forward(self, ids: jax.Array) -> Any:
            return self.head(self.embedding(ids), self.embedding)

    ids = jnp.array([[0, 1, 2]])
    params = new_params(Model(Embedding(3, 8)), ids)
    assert jax.tree.map(jnp.shape, params) == {'embedding': {'table': (3, 8)}}


@pytest.mark.pax('Shared layers')
def test_a_layer_that_is_called_twice_shares_its_weights_and_not_its_dropout() -> None:
    class Twice(Layer):
        linear: Linear = Linear(8)
        dropout: Dropout = Dropout(0.5)

        def forward(self, x: jax.Array) -> Any:
            return self.dropout(self.linear(x)), self.dropout(self.linear(x))

    params = new_params(Twice(), X_BTD)
    assert list(params) == ['linear']
    first, second = applied(Twice(), params, X_BTD)
    np.testing.assert_array_equal(first, second)
    first, second = applied(Twice(), params, X_BTD, training=True)
    assert not np.array_equal(first, second)


def mixed_stack(scan: str) -> Stack:
    blocks = [
        Residual(FeedForward(4, dropout=Dropout(rate)), dropout=Dropout(0.2))
        for rate in (0.1, 0.5, 0.3)
    ]
    other = Residual(GatedFeedForward(4))
    return Stack([*blocks, other], repeats=2, scan=scan)


@pytest.mark.pax('Seeds, the step', 'Repeat', '`repeat`')
@pytest.mark.slow
def test_a_scanned_stack_is_the_unrolled_one() -> None:
    unrolled, scanned = mixed_stack('never'), mixed_stack('always')
    flat, packed = new_params(unrolled, X_BTD), new_params(scanned, X_BTD)
    assert list(packed) == ['layers_0x3', 'layers_3', 'layers_4x3', 'layers_7']
    # Random draws of a layer, and its dropout, depend only on its path.
    assert not np.array_equal(*(flat[f'layers_{i}']['layer']['up'] for i in (0, 1)))
    jax.tree.map(np.testing.assert_array_equal, layers.per_layer(packed), flat)
    jax.tree.map(np.testing.assert_array_equal, layers.stacked(flat, scanned), packed)
    for training in (False, True):
        np.testing.assert_allclose(
            applied(scanned, packed, X_BTD, training=training),
            applied(unrolled, flat, X_BTD, training=training),
            rtol=1e-5,
            atol=1e-6,
        )


def test_each_layer_of_a_run_has_its_own_numbers() -> None:
    rates = [0.0, 0.9]
    stack = Stack([Residual(FeedForward(8), dropout=Dropout(r)) for r in rates], scan='always')
    same = Stack([Residual(FeedForward(8), dropout=Dropout(0.0)) for _ in rates], scan='always')
    params = new_params(stack, X_BTD)
    assert not np.allclose(
        applied(stack, params, X_BTD, training=True), applied(same, params, X_BTD, training=True)
    )


@pytest.mark.parametrize('remat', ['full', 'dots', 'none'])
@pytest.mark.fast(1)
def test_remat_changes_no_gradient(remat: str) -> None:
    stack = Stack([Residual(FeedForward(4))], repeats=3, scan='always', remat=remat)
    plain = Stack([Residual(FeedForward(4))], repeats=3, scan='never')
    params = new_params(plain, X_BTD)
    wanted = jax.grad(lambda p: applied(plain, p, X_BTD).sum())(params)
    packed = layers.stacked(params, stack)
    got = jax.grad(lambda p: applied(stack, p, X_BTD).sum())(packed)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        layers.per_layer(got),
        wanted,
    )


def test_short_stacks_are_unrolled_on_cpu() -> None:
    assert [part.name for part in Stack([Linear(8)], repeats=2).storage()] == [
        'layers_0',
        'layers_1',
    ]
    assert [part.name for part in Stack([Linear(8)], repeats=9).storage()] == ['layers_0x9']


@pytest.mark.pax('JaxContext')
def test_dropout_keeps_the_mean() -> None:
    x = jnp.ones((400, 100))
    y = applied(Dropout(0.25), {}, x, training=True)
    assert abs(float(y.mean()) - 1) < 0.02
    assert abs(float((y == 0).mean()) - 0.25) < 0.02
    np.testing.assert_array_equal(applied(Dropout(0.25), {}, x), x)


def attention_by_hand(
    layer: Attention, params: Any, x_BTD: jax.Array, wavelength: float
) -> np.ndarray:
    """Causal attention, one query at a time."""
    q, k, v = (np.einsum('btd,dnh->btnh', x_BTD, params[n]) for n in ('query', 'key', 'value'))
    index = np.broadcast_to(np.arange(x_BTD.shape[1]), x_BTD.shape[:2])
    q, k = (rotated(a, index, wavelength) for a in (q, k))
    group = layer.num_heads // k.shape[2]
    out = np.zeros_like(x_BTD)
    for b, t, n in np.ndindex(q.shape[:3]):
        scores = k[b, : t + 1, n // group] @ q[b, t, n] / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        mixed = weights @ v[b, : t + 1, n // group] / weights.sum()
        out[b, t] += mixed @ np.asarray(params['output'][n])
    return out


@pytest.mark.pax('Attention: grouped queries')
@pytest.mark.parametrize('kv_heads', [None, 2, 1])
@pytest.mark.fast(2)
def test_attention_equals_a_loop_over_queries(kv_heads: int | None) -> None:
    layer = Attention(4, head_dim=6, num_kv_heads=kv_heads, position=Rotary(50.0))
    params = new_params(layer, X_BTD)
    assert params['key'].shape == params['value'].shape == (8, kv_heads or 4, 6)
    np.testing.assert_allclose(
        applied(layer, params, X_BTD),
        attention_by_hand(layer, params, X_BTD, 50.0),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.pax('Attention: grouped queries')
def test_segments_do_not_see_each_other() -> None:
    layer = Attention(2)
    params = new_params(layer, X_BTD)
    packed = Positions(jnp.array([[0, 1, 2, 0, 1, 2]] * 2), jnp.array([[1, 1, 1, 2, 2, 2]] * 2))
    whole = applied(layer, params, X_BTD, packed)
    apart = [applied(layer, params, X_BTD[:, part]) for part in (slice(0, 3), slice(3, 6))]
    np.testing.assert_allclose(whole, jnp.concatenate(apart, axis=1), rtol=1e-4, atol=1e-5)


def test_full_attention_sees_the_future() -> None:
    for mask, sees in (('causal', False), ('full', True)):
        layer = Attention(2, mask=mask)
        params = new_params(layer, X_BTD)
        changed = X_BTD.at[:, -1].add(1)
        first = [applied(layer, params, x)[:, 0] for x in (X_BTD, changed)]
        assert np.allclose(*first) is not sees


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'num_heads': 4, 'num_kv_heads': 3}, 'must divide num_heads'),
        ({'num_heads': 2, 'head_dim': 3}, 'must be even'),
    ],
)
def test_impossible_attention_is_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Attention(**fields)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(UserError, match='3 heads do not divide the width 8'):
        new_params(Attention(3), X_BTD)


@pytest.mark.pax('Common fields go')
def test_bfloat16_stays_bfloat16_and_logits_are_float32() -> None:
    block = TransformerBlock(Attention(2), GatedFeedForward(4), dropout=Dropout(0.1))
    model = TransformerLm(Embedding(5, 8), Stack([block], repeats=2, scan='always'))
    ids = jnp.zeros((1, 3), jnp.int32)
    params = new_params(model, ids)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype('float32')}
    out = applied(model, params, ids, dtype=jnp.bfloat16, training=True)
    assert out.dtype == jnp.float32
    hidden = applied(
        block,
        layers.per_layer(params)['stack']['layers_0'],
        X_BTD.astype(jnp.bfloat16),
        dtype=jnp.bfloat16,
        training=True,
    )
    assert hidden.dtype == jnp.bfloat16


@pytest.mark.pax('… DISALLOW_BFLOAT16_CONVERSION')
def test_a_parameter_may_be_left_in_float32() -> None:
    class Scale(Layer):
        keep: bool

        def forward(self, x: jax.Array) -> Any:
            scale = self.param('scale', (8,), ('features',), keep_float32=self.keep, init=_thirds)
            return scale, x

    for keep, dtype in ((True, 'float32'), (False, 'bfloat16')):
        scale, _ = applied(Scale(keep), new_params(Scale(keep), X_BTD), X_BTD, dtype=jnp.bfloat16)
        assert scale.dtype == dtype


@pytest.mark.parametrize('norm', [RMSNorm(), LayerNorm(), GroupNorm(num_groups=2), BatchNorm()])
def test_scales_of_norms_near_zero_keep_their_digits_in_bfloat16(norm: Layer) -> None:
    x = jax.random.normal(jax.random.key(1), (4, 6, 8), jnp.bfloat16)
    params = {'scale': jnp.linspace(-0.999, -0.99, 8)}  # Stored are scale - 1.
    params |= {} if isinstance(norm, RMSNorm) else {'bias': jnp.zeros(8)}
    state = {'mean': jnp.zeros(8), 'variance': jnp.ones(8)}
    variables = {'params': params, 'non_trainable': state}
    with forward_context(ForwardContext(dtype=jnp.bfloat16)):
        narrow = jnp.asarray(norm.module().apply(variables, x))
    wide = jnp.asarray(norm.module().apply(variables, x.astype(jnp.float32)))
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_allclose(narrow.astype(jnp.float32), wide, rtol=2**-8)


def _thirds(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jnp.full(shape, 1 / 3, dtype)


_BY_HAND: dict[ActivationName, Callable[[float], float]] = {
    'gelu_exact': lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    'gelu': lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    'relu': lambda x: max(x, 0),
    'relu6': lambda x: min(max(x, 0), 6),
    'leaky_relu': lambda x: x if x > 0 else 0.01 * x,
    'squared_relu': lambda x: max(x, 0) ** 2,
    'cubed_relu': lambda x: max(x, 0) ** 3,
    'silu': lambda x: x / (1 + math.exp(-x)),
    'sigmoid': lambda x: 1 / (1 + math.exp(-x)),
    'softplus': lambda x: math.log1p(math.exp(x)),
    'exp': math.exp,
    'tanh': math.tanh,
    'identity': lambda x: x,
}


@pytest.mark.pax('Activations: 13')
def test_activations_are_their_formulas() -> None:
    assert set(_BY_HAND) == set(get_args(ActivationName))
    points = [-7.5, -1.0, -0.1, 0.0, 0.3, 2.0, 7.5]
    for name, formula in _BY_HAND.items():
        wanted = [formula(x) for x in points]
        np.testing.assert_allclose(
            activate(jnp.array(points), name), wanted, rtol=1e-5, atol=1e-6, err_msg=name
        )


@pytest.mark.pax('Embeddings and softmax')
def test_an_own_head_projects_to_the_vocabulary() -> None:
    stack = Stack([Residual(FeedForward(4))])
    model = TransformerLm(Embedding(5, 8), stack, head=Linear(5, axes=['embed', 'vocab']))
    ids = jnp.zeros((1, 3), jnp.int32)
    params = new_params(model, ids)
    assert params['head']['kernel'].shape == (8, 5)
    assert applied(model, params, ids).shape == (1, 3, 5)
    with pytest.raises(ValueError, match=r'head.output_dims \(4\) must equal'):
        TransformerLm(Embedding(5, 8), stack, head=Linear(4))


def test_identity_leaves_a_layer_out() -> None:
    layer = Residual(layers.Identity())
    assert not init_or_empty(layer)
    np.testing.assert_array_equal(layer.module().apply({}, X_BTD), X_BTD)


def init_or_empty(layer: Layer) -> Any:
    return layer.module().init({'params': jax.random.key(0)}, X_BTD)


@pytest.mark.parametrize(('ratio', 'width'), [(2.0, 16), (2.6, 21), (0.01, 1)])
@pytest.mark.parametrize('kind', [FeedForward, GatedFeedForward])
@pytest.mark.fast(2)
def test_a_feed_forward_layer_is_as_wide_as_its_ratio_says(
    kind: type[FeedForward], ratio: float, width: int
) -> None:
    by_ratio, by_dims = kind(hidden_ratio=ratio), kind(hidden_dims=width)
    params = new_params(by_ratio, X_BTD)
    assert params['up'].shape == (8, width)
    np.testing.assert_array_equal(applied(by_ratio, params, X_BTD), applied(by_dims, params, X_BTD))


def test_the_ratio_of_a_feed_forward_layer_is_structure() -> None:
    # Another width is another program, and another run than its neighbour's.
    first, second = (Residual(FeedForward(hidden_ratio=ratio)) for ratio in (2.0, 3.0))
    assert key(first) != key(second)
    params = new_params(Stack([first, second], scan='always'), X_BTD)
    assert [params[f'layers_{i}']['layer']['up'].shape[1] for i in range(2)] == [16, 24]


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'hidden_dims': 8, 'hidden_ratio': 2.0}, 'give one of them'),
        ({'hidden_ratio': 0.0}, 'hidden_ratio must be above 0'),
    ],
)
def test_impossible_widths_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FeedForward(**fields)


@pytest.mark.parametrize('layer', [Embedding(2, 4, scale_sqrt_depth=False), LearnedPositions(1)])
def test_gradients_of_many_tokens_add_up_in_bfloat16(layer: Any) -> None:
    ids_BT = jnp.zeros((4096, 1), jnp.int32)
    more = () if isinstance(layer, Embedding) else (4,)
    params = {'table': jnp.zeros((2 if isinstance(layer, Embedding) else 1, 4))}

    def total(params: Any) -> jax.Array:
        with forward_context(ForwardContext(dtype=jnp.bfloat16)):
            return jnp.sum(layer.module().apply({'params': params}, ids_BT, *more))

    assert jax.grad(total)(params)['table'][0].tolist() == [4096.0] * 4


def test_a_vector_without_init_is_refused_by_layer_and_name() -> None:
    class Gain(Layer):
        def forward(self, x: jax.Array) -> jax.Array:
            return x * self.param('gain', x.shape[-1:], ('norm',))

    with pytest.raises(UserError, match=r"layers\[0\] \(Gain\): parameter 'gain' of shape \(8,\)"):
        Stack([Gain()]).module().init({'params': jax.random.key(0)}, jnp.ones((2, 3, 8)))


@pytest.mark.parametrize(
    ('kind', 'arguments'),
    [
        (Attention, {'num_heads': 2, 'num_kv_heads': 1}),
        (Attention, {'num_heads': 2, 'combine_qkv': True}),
        (GatedFeedForward, {'hidden_dims': 16}),
        (Linear, {'output_dims': 3}),
        (layers.LatentAttention, {'num_heads': 2, 'latent_dims': 4, 'query_latent_dims': 6}),
        (layers.Mlp, {'hidden_dims': [5, 6], 'output_dims': 4}),
    ],
)
def test_every_kernel_passes_the_product_of_its_layer(kind: Any, arguments: Any) -> None:
    seen = []

    class Watched(kind):
        def product(self, equation: str, x: Any, kernel: Any, dtype: Any = None) -> Any:
            seen.append(kernel.shape)
            return super().product(equation, x, kernel, dtype)

    variables = jax.eval_shape(
        lambda: Watched(**arguments).module().init({'params': jax.random.key(0)}, X_BTD)
    )
    kernels = [x.shape for x in jax.tree.leaves(variables) if x.ndim > 1]
    assert sorted(seen) == sorted(kernels)
    assert kernels
