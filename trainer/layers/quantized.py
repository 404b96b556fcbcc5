"""Frozen kernels in few bits, by the functions of `qwix`: blocks of numbers share a scale.

A kernel in 'nf4' has pairs of numbers in bytes, along the axis of blocks. Scales are the parameter
`<kernel>_lora_scale`.
Layers see a kernel in floating point: `Layer.param` makes it where it is used, one layer at a time.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from trainer.symbolic.errors import UserError
from trainer.symbolic.extras import needed

Format = Literal['int8', 'nf4']

SCALE = '_lora_scale'
_BLOCK = 64  # Dettmers et al. 2023 (QLoRA), section 3.
_MIN_BLOCK = 8


def scale_shape(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The shape of the scales of a kernel, with blocks along an axis.

    Blocks have the largest size up to 64 that divides the axis, or are as long as the axis.

    Example:
        >>> scale_shape((576, 9, 64), 0), scale_shape((48, 10), 0), scale_shape((67, 10), 0)
        ((9, 9, 64), (1, 10), (1, 10))
    """
    size = shape[axis]
    block = max(each for each in range(1, min(size, _BLOCK) + 1) if size % each == 0)
    blocks = size // block if block >= _MIN_BLOCK else 1
    return tuple(blocks if at == axis % len(shape) else n for at, n in enumerate(shape))


def quantized(params: Any, format: Format) -> Any:
    """Parameters in which each kernel that has scales is quantized."""
    with needed('huggingface', 'task.adapters.quantized'):
        from qwix import quantize  # type: ignore[attr-defined]
    flat = flatten_dict(params)
    for path in [each for each in flat if each[-1].endswith(SCALE)]:
        kernel_path = (*path[:-1], path[-1].removesuffix(SCALE))
        # Fused with a random draw, numbers would round otherwise than alone.
        kernel = jax.lax.optimization_barrier(flat[kernel_path].astype(jnp.float32))
        shape = flat[path].shape
        blocks = {i: n // m for i, (n, m) in enumerate(zip(kernel.shape, shape, strict=True))}
        blocks = {axis: block for axis, block in blocks.items() if block > 1}
        others = [axis for axis in range(kernel.ndim) if axis not in blocks]
        made = quantize(kernel, format, channelwise_axes=others, tiled_axes=blocks)
        value = made.qvalue
        if format == 'nf4':
            value = _packed(value.astype(jnp.uint8), next(iter(blocks)))
        flat |= {kernel_path: value, path: made.scale}
    return unflatten_dict(flat)


def dequantized(kernel: jax.Array, scale: jax.Array) -> jax.Array:
    """A stored kernel in float32."""
    with needed('huggingface', 'task.adapters.quantized'):
        from qwix import QArray, dequantize  # type: ignore[attr-defined]
    if kernel.dtype == jnp.int8:
        return jnp.asarray(dequantize(QArray(kernel, scale, qtype='int8')))
    axis, shape = _packed_axis(kernel, scale), kernel_shape(kernel, scale)
    pairs = jnp.stack([kernel & 15, kernel >> 4], axis + 1)
    value = pairs.reshape(shape).astype(jnp.uint4)
    return jnp.asarray(dequantize(QArray(value, scale, qtype='nf4')))


def kernel_shape(kernel: Any, scale: Any) -> tuple[int, ...]:
    """The shape of the kernel that is stored with these scales."""
    if kernel.dtype == jnp.int8:
        return tuple(kernel.shape)
    axis = _packed_axis(kernel, scale)
    return tuple(2 * n if at == axis else n for at, n in enumerate(kernel.shape))


def _packed(value: jax.Array, axis: int) -> jax.Array:
    """Pairs of 4-bit numbers along an axis, in bytes: not all backends store single ones."""
    size = value.shape[axis]
    if size % 2 or size < 4:
        raise UserError(
            f"task.adapters.quantized: 'nf4' needs an even number of inputs, not {value.shape}: "
            "leave them out of targets, or take 'int8'"
        )
    first, second = (jax.lax.slice_in_dim(value, i, size, 2, axis) for i in (0, 1))
    return first | (second << 4)


def _packed_axis(kernel: Any, scale: Any) -> int:
    sizes = enumerate(zip(kernel.shape, scale.shape, strict=True))
    return next(at for at, (stored, blocks) in sizes if stored != blocks)
