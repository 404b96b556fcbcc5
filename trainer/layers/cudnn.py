"""Attention by the fused kernels of NVIDIA's cuDNN."""

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from trainer.layers.base import Layer
from trainer.layers.context import current_context
from trainer.symbolic.errors import UserError


def attend_by_cudnn(
    layer: Layer,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    mask: jax.Array | None,
    is_causal: bool,
    window: int | None,
) -> jax.Array:
    """Attention as `MultiHead._attend` defines it, from whole sequences on each device.

    Devices that share positions exchange them for heads (Jacobs et al. 2023).

    Raises:
        UserError: there is no kernel for this platform, dtype or shape, or heads do not divide.
    """
    _require_kernel(layer, q_BTNH, k_BSKH)
    q_BTNH, k_BSKH, v_BSKH = _by_heads(layer, q_BTNH, k_BSKH, v_BSKH)
    if mask is not None:
        mask = _of_all_queries_and_keys(layer, mask, q_BTNH, k_BSKH)
    return jax.nn.dot_product_attention(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        mask=mask,
        is_causal=is_causal,
        local_window_size=None if window is None else (window - 1, 0),
        implementation='cudnn',
    )


def _require_kernel(layer: Layer, q_BTNH: jax.Array, k_BSKH: jax.Array) -> None:
    where, platform = f"{layer.sym_path}.implementation='cudnn'", jax.default_backend()
    if platform != 'gpu':
        raise UserError(f"{where} needs a GPU, and JAX runs on a {platform}: use 'auto'")
    if layer.dtype == jnp.float32:
        raise UserError(f"{where} computes only in bfloat16: set task.fprop_dtype='bfloat16'")
    if (head_dim := q_BTNH.shape[-1]) % 8 or head_dim > 256:
        raise UserError(
            f'{where} needs heads of a multiple of 8 up to 256, and these are {head_dim} wide'
        )
    odd = [length for length in (q_BTNH.shape[1], k_BSKH.shape[1]) if length % 2]
    if odd and layer.training:
        raise UserError(
            f'{where} trains on sequences of even length, and one has {odd[0]} positions'
        )


def _by_heads(layer: Layer, *each: jax.Array) -> list[jax.Array]:
    """Queries, keys and values of all positions, of a part of the heads on each device."""
    mesh = current_context().mesh
    if mesh is None:
        return list(each)
    (of_heads, heads), (of_positions, positions) = mesh.parts('heads'), mesh.parts('length')
    parts = of_heads * of_positions
    if each[0].shape[2] % parts:
        over = ' × '.join(f'mesh.{name}' for name in (*heads, *positions))
        raise UserError(
            f"{layer.sym_path}.implementation='cudnn' divides heads over {over}, but its "
            f'{each[0].shape[2]} heads do not divide over {parts} devices: use '
            "'auto', which divides positions, or another mesh"
        )
    if mesh.is_abstract:
        return list(each)
    examples, length, _, size = mesh.spec('batch', None, 'heads', 'kv')
    at = mesh.placed(PartitionSpec(examples, length, (*heads, *positions), size))
    # Fewer keys than devices are repeated, each for as many queries as it has on one device.
    times = [parts // math.gcd(x.shape[2], parts) for x in each]
    wide = [jnp.repeat(x, n, axis=2) if n > 1 else x for x, n in zip(each, times, strict=True)]
    return [jax.lax.with_sharding_constraint(x, at) for x in wide]


def _of_all_queries_and_keys(
    layer: Layer, mask: jax.Array, q_BTNH: jax.Array, k_BSKH: jax.Array
) -> jax.Array:
    # The kernels read a mask with all its entries. Only examples and heads may be of size 1.
    examples, heads = mask.shape[:2]
    axes = ('batch' if examples == len(q_BTNH) else None, None, None, None)
    whole = jnp.broadcast_to(mask, (examples, heads, q_BTNH.shape[1], k_BSKH.shape[1]))
    return layer.constrain(whole, axes)
