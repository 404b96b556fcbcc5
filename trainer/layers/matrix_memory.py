"""States that are matrices from keys to values, written and read position by position."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.initialization import Initializer
from trainer.layers.positions import Positions
from trainer.layers.recurrence import in_chunks

_NEVER = -1e30
"""An exponent for zero. Minus infinity has no difference to itself."""


_STEPS = 1e-3, 1e-1
"""Sizes of new steps, spread evenly by their logarithms."""

_MAX_RATE = 16.0


class Writes(NamedTuple):
    """Arrays that each position writes to the state, and reads it with.

    Attributes:
        q_BTGK: queries of G heads.
        k_BTGK: keys.
        v_BTNV: values; N is a multiple of G, whose heads share queries and keys.
        log_a_BTN: logarithms of the factors that keep the state, at most 0.
        b_BTN: factors of the values.
    """

    q_BTGK: jax.Array
    k_BTGK: jax.Array
    v_BTNV: jax.Array
    log_a_BTN: jax.Array
    b_BTN: jax.Array


def scan_memory(
    writes: Writes, positions: Positions, start_BNKV: jax.Array, chunk: int, corrects: bool
) -> tuple[jax.Array, jax.Array]:
    """S[t] = a[t] S[t - 1] + b[t] k[t] v[t]^T, read as S[t]^T q[t], in float32.

    Inside a chunk all positions are computed at once, as attention is. Chunks follow each other
    (Dao & Gu 2024, section 6; Yang et al. 2024 for the corrected rule).

    Args:
        start_BNKV: the state before the first position.
        chunk: positions in a chunk, a power of two.
        corrects: the delta rule, which writes v[t] - a[t] S[t - 1]^T k[t] in place of v[t]. Its
            keys have norm 1.

    Returns:
        The values read, [B, T, N, V], and the last state.
    """
    batch, length, groups, _ = writes.q_BTGK.shape
    heads, dims = writes.v_BTNV.shape[2:]
    chunk = min(chunk, 1 << (length - 1).bit_length())
    is_token_BT1 = positions.is_token_BT[..., None]
    log_a_BTN = jnp.where(is_token_BT1, writes.log_a_BTN, 0.0)
    b_BTN = jnp.where(is_token_BT1, writes.b_BTN, 0.0)

    def split(x_BTN: jax.Array) -> jax.Array:  # [B, C, G, N / G, c, ...]
        x_BCNc = jnp.moveaxis(in_chunks(x_BTN.astype(jnp.float32), chunk), 3, 2)
        return x_BCNc.reshape(*x_BCNc.shape[:2], groups, -1, *x_BCNc.shape[3:])

    q, k, v, log_a, b = (split(x) for x in (*writes[:3], log_a_BTN, b_BTN))
    each = _chunks(q, k, v, log_a, b, _ids(positions, chunk), corrects)

    def step(s: jax.Array, each: _Chunk) -> tuple[jax.Array, jax.Array]:
        u = each.u if each.w is None else each.u - each.w @ s
        read = each.from_before[..., None] * (each.q @ s) + each.qk @ u
        written = jnp.swapaxes(each.k, -1, -2) @ (each.to_end[..., None] * u)
        return each.keep[..., None] * s + written, read

    start = start_BNKV.reshape(batch, groups, -1, *start_BNKV.shape[2:])
    end, read = jax.lax.scan(step, start, jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), each))
    read_BTNV = jnp.moveaxis(read, (0, 4), (1, 2)).reshape(batch, -1, heads, dims)
    return read_BTNV[:, :length], end.reshape(start_BNKV.shape)


class _Chunk(NamedTuple):
    """Arrays of chunks, [B, C, G, N / G, c, ...]; the fields before `u` are factors."""

    from_before: jax.Array
    to_end: jax.Array
    keep: jax.Array
    u: jax.Array
    w: jax.Array | None
    q: jax.Array
    k: jax.Array
    qk: jax.Array


def _chunks(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_a: jax.Array,
    b: jax.Array,
    ids: jax.Array,
    corrects: bool,
) -> _Chunk:
    last = ids[..., -1:]
    before = jnp.concatenate([jnp.zeros_like(last[:, :1]), last[:, :-1]], axis=1)
    g = jnp.cumsum(log_a, axis=-1)
    rest = _rounded_off(log_a, g)
    is_seen = (ids[..., :, None] == ids[..., None, :]) & jnp.tri(ids.shape[-1], dtype=bool)
    # The exponent is masked, not the result: a later position would overflow.
    apart = (x[..., :, None] - x[..., None, :] for x in (g, rest))
    decay = jnp.exp(jnp.where(is_seen, sum(apart), _NEVER))
    from_before = jnp.exp(g) * (ids == before)
    u, w = b[..., None] * v, None
    if corrects:
        lower = jnp.tril(b[..., None] * decay * _products(k, k), -1)
        inverse = unit_inverse(lower)
        u, w = inverse @ u, inverse @ ((b * from_before)[..., None] * k)
    return _Chunk(
        from_before=from_before,
        to_end=jnp.exp(jnp.where(ids == last, (g[..., -1:] - g) + (rest[..., -1:] - rest), _NEVER)),
        keep=jnp.exp(g[..., -1:]) * (last == before),
        u=u,
        w=w,
        q=q,
        k=k,
        qk=_products(q, k) * decay,
    )


def _rounded_off(log_a: jax.Array, g: jax.Array) -> jax.Array:
    """The exact sums of `log_a` minus the rounded ones, `g`.

    A small difference of large sums, as after a position that forgets all, has lost its last digits
    in `g`. Knuth's TwoSum finds them.
    """
    before = jnp.concatenate([jnp.zeros_like(g[..., :1]), g[..., :-1]], axis=-1)
    step = g - before
    back = step - g
    error = (g - (step - back)) - (before + back)
    return jax.lax.stop_gradient(jnp.cumsum((log_a - step) - error, axis=-1))


def _products(q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.einsum('...ik,...jk->...ij', q, k)


def _ids(positions: Positions, chunk: int) -> jax.Array:
    """Segments [B, C, 1, 1, c] by number; 0 continues the state before the row."""
    ids_BT = jnp.cumsum(positions.begins_BT, axis=1)
    return in_chunks(ids_BT, chunk, None)[:, :, None, None]


def unit_inverse(lower: jax.Array) -> jax.Array:
    """(I + lower)^-1 of strictly lower triangular matrices, whose size is a power of two.

    It goes by blocks. The product (I - L)(I + L^2)(I + L^4)… overflows where keys are equal.

    Example:
        >>> unit_inverse(jnp.array([[0.0, 0.0], [3.0, 0.0]])).tolist()
        [[1.0, 0.0], [-3.0, 1.0]]
    """
    half = lower.shape[-1] // 2
    if not half:
        return jnp.ones_like(lower)
    first, second = unit_inverse(jnp.stack([lower[..., :half, :half], lower[..., half:, half:]]))
    product = jnp.matmul(second, lower[..., half:, :half], precision='highest')
    below = -jnp.matmul(product, first, precision='highest')
    top = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([below, second], axis=-1)], axis=-2)


def steps(
    layer: Layer, name: str, x_BTD: jax.Array, heads: int, kernel_init: Initializer | None
) -> tuple[jax.Array, jax.Array]:
    """The size dt of each position's step, and the logarithm of the share of the state it keeps.

    dt is softplus of a projection, the parameter `name` of `layer`, and a bias. A head keeps
    exp(-dt * rate) with a rate of its own. All are float32, [B, T, heads].
    """

    def of_heads(name: str, init: Any) -> jax.Array:
        return layer.param(name, (heads,), ('heads',), init, decay=False, keep_float32=True)

    kernel = layer.param(name, (x_BTD.shape[-1], heads), ('embed', 'heads'), kernel_init)
    logits_BTN = layer.product('btd,dn->btn', x_BTD, kernel, jnp.float32)
    dt_BTN = jax.nn.softplus(logits_BTN + of_heads(f'{name}_bias', _new_step))
    dt_BTN = layer.constrain(dt_BTN, ('batch', None, 'heads'))
    return dt_BTN, -jnp.exp(of_heads('log_rate', _new_log_rate)) * dt_BTN


def _new_step(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    low, high = map(math.log, _STEPS)
    return jnp.log(jnp.expm1(jnp.exp(jax.random.uniform(key, shape, dtype, low, high))))


def _new_log_rate(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jnp.log(jax.random.uniform(key, shape, dtype, 1.0, _MAX_RATE))


def check_chunk(layer: Layer) -> None:
    """Raises ValueError unless the field `chunk` is a power of two."""
    chunk: int = layer.sym_getattr('chunk')
    if chunk < 1 or chunk & (chunk - 1):
        raise ValueError(f'chunk must be a power of two: {chunk}')
