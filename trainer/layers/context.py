"""Settings of one forward pass."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp

from trainer.layers.lora import LoRA
from trainer.layers.precision import Precision
from trainer.mesh import Arrangement

Kernels = Literal['jax', 'tokamax']
"""Libraries of fused kernels."""


@dataclasses.dataclass(frozen=True)
class ForwardContext:
    """Settings that all layers share in one forward pass.

    Attributes:
        training: activates dropout and the like.
        dtype: the dtype of computations.
        param_dtype: the dtype of new parameters.
        mesh: divides activations; None leaves their layout to the compiler.
        example_weights: of the examples of the batch, 0 for padding; None if all examples count.
        label_weights: computes the weights of the labels, [B, T]; None if they are unknown.
        cache_length: capacity of decoding caches, in positions; None outside of decoding.
        adapters: of kernels; None computes without them, as the un-adapted model.
        precision: of products with kernels; None computes them in the dtype.
        rounded: gets the names of the kernels whose products `precision` rounds; None for none.
        kernels: the library of fused kernels.
        loss_chunks: parts of the tokens that pass through the last product of a language model; 1
            for whole logits, None for a usual number.
    """

    training: bool = False
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32
    mesh: Arrangement | None = None
    example_weights: jax.Array | None = None
    label_weights: Callable[[], jax.Array | None] | None = None
    cache_length: int | None = None
    adapters: LoRA | None = None
    precision: Precision | None = None
    rounded: set[str] | None = None
    kernels: Kernels = 'jax'
    loss_chunks: int | None = 1


_DEFAULT = ForwardContext()
_context: contextvars.ContextVar[ForwardContext] = contextvars.ContextVar(
    'context', default=_DEFAULT
)


@contextlib.contextmanager
def forward_context(context: ForwardContext) -> Iterator[None]:
    """Sets the context of the layers that run inside the `with` block."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


def current_context() -> ForwardContext:
    """The settings of the running forward pass."""
    return _context.get()


def label_weights() -> jax.Array | None:
    """Weights of the labels of the batch, [B, T], for a layer with a loss; None if unknown."""
    compute = _context.get().label_weights
    return None if compute is None else compute()
