"""A single layer that is initialized and run."""

from typing import Any

import flax.linen as nn
import jax

from trainer.layers import Layer


def init(layer: Layer, *args: Any) -> Any:
    """New variables, without their metadata."""
    return nn.meta.unbox(layer.module().init({'params': jax.random.key(0)}, *args))


def apply(layer: Layer, variables: Any, *args: Any) -> Any:
    """The result in evaluation."""
    return layer.module().apply(variables, *args)
