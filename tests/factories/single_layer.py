"""Initializes and runs a single layer."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from trainer.layers import Layer, Positions
from trainer.layers.base import CACHE, ForwardContext, forward_context
from trainer.mesh import Mesh


def init(layer: Layer, *args: Any) -> Any:
    """New variables, without their metadata."""
    return nn.meta.unbox(layer.module().init({'params': jax.random.key(0)}, *args))


def apply(layer: Layer, variables: Any, *args: Any) -> Any:
    """The result in evaluation."""
    return layer.module().apply(variables, *args)


def meshes_of_sequences() -> dict[str, jax.sharding.Mesh]:
    """Meshes of one device, and of eight that share the positions of a sequence."""
    eight = {
        'positions': Mesh(data=2, sequence=4),
        'mixed': Mesh(data=2, sequence=2, tensor=2),
    }
    one = Mesh(data=1).make(jax.devices()[:1])
    return {'one device': one} | {name: each.make(jax.devices()) for name, each in eight.items()}


def token_by_token(layer: Layer, variables: Any, x_BTD: jax.Array, lengths: list[int]) -> Any:
    """The results of incremental decoding: whole prompts first, then one position per call.

    Args:
        layer: any that takes positions and keeps the shape.
        variables: its own.
        x_BTD: the sequences.
        lengths: how long the prompt of each is. A shorter one is filled up with what is not there.
    """
    examples, length, _ = x_BTD.shape
    rows, longest, lengths_B = np.arange(examples), max(lengths), np.array(lengths)

    def extend(cache: Any, x: Any, positions: Positions) -> Any:
        with forward_context(ForwardContext(cache_length=length)):
            given = variables | ({} if cache is None else {CACHE: cache})
            out, left = layer.module().apply(given, x, positions, mutable=[CACHE])
        return left[CACHE], out

    extend_jit = jax.jit(extend)
    is_prompt_BP1 = (np.arange(longest) < lengths_B[:, None])[:, :, None]
    prompts_BPD = jnp.where(is_prompt_BP1, x_BTD[:, :longest], 9.0)
    cache, out = extend_jit(None, prompts_BPD, Positions.unpacked(prompts_BPD.shape[:2]))
    written = np.zeros(x_BTD.shape, out.dtype)
    written[:, :longest] = out
    for step in range(length - min(lengths)):
        at_B = np.minimum(lengths_B + step, length - 1)
        cache, out = extend_jit(cache, x_BTD[rows, at_B][:, None], Positions(at_B[:, None]))
        written[rows, at_B] = out[:, 0]
    return written
