import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax

from trainer.layers.base import ForwardContext, Layer, forward_context
from trainer.layers.summed_ahead import TokenLoss, Values, summed_ahead
from trainer.mesh import Arrangement

LARGE_BYTES = 2**28
"""Logits of a device above this size are made in chunks, and a chunk has about this size."""

_MIN_CHUNKS = 8
"""A chunk needs about 3 times its logits."""


@dataclasses.dataclass(frozen=True, eq=False)
class TokenLogits:
    """Logits of tokens, [B, T, V] in float32, that exist in chunks of tokens alone.

    Attributes:
        x_BTD: activations that the logits are made of.
        head: makes logits of them, from the parameters of the model.
        chunks: parts of the tokens of a device.
        context: of the forward pass.
    """

    x_BTD: jax.Array
    head: Callable[[jax.Array], Any]
    chunks: int
    context: ForwardContext

    @functools.cached_property
    def _abstract(self) -> Any:
        # This checks the mesh axes of the logits, too.
        with forward_context(self.context):
            return jax.eval_shape(self.head, self.x_BTD)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all logits, [B, T, V]."""
        shape: tuple[int, ...] = self._abstract.shape
        return shape

    @property
    def ndim(self) -> int:
        """Number of axes of all logits."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the logits."""
        return self._abstract.dtype

    def whole(self) -> jax.Array:
        """All logits at once."""
        with forward_context(self.context):
            logits: jax.Array = self.head(self.x_BTD)
        return logits

    def weighted_sum(
        self, terms: TokenLoss, weights_BT: jax.Array, *others_BT: jax.Array
    ) -> tuple[jax.Array, Values]:
        """The weighted sum of a loss of tokens, and other values of theirs without a gradient.

        Args:
            terms: (logits [1, n, V], *others [1, n]) -> (losses [1, n], other values by name).
        """
        # A chunk has tokens of one device, which no mesh divides.
        alone = dataclasses.replace(self.context, mesh=None)

        def of_chunk(x: jax.Array, *others: jax.Array) -> tuple[jax.Array, Values]:
            with forward_context(alone):
                logits = self.head(x)
            return terms(logits, *others)

        return summed_ahead(
            of_chunk,
            self.x_BTD,
            weights_BT,
            *others_BT,
            chunks=self.chunks,
            mesh=self.context.mesh,
        )


def splits_logits(layer: Layer) -> bool:
    """True if a model makes logits in two parts: forward(…) is logits(last_hidden(…)).

    A class that defines `forward` without them makes logits of another kind.
    """
    parts = {'forward', 'last_hidden', 'logits'}
    nearest = next((each for each in type(layer).__mro__ if parts & {*vars(each)}), Layer)
    return parts <= {*vars(nearest)}


def num_chunks(shape_BTD: tuple[int, ...], vocab_size: int, mesh: Arrangement | None = None) -> int:
    """The usual number of chunks of the tokens of a device; 1 for few logits.

    A chunk has at least as many tokens as features, unless there are only 8 chunks. Its logits are
    then at least as large as the gradient of the table, which each chunk reads and writes.

    Example:
        >>> num_chunks((8, 128, 512), 256), num_chunks((32, 1024, 768), 50_304)
        (1, 25)
        >>> num_chunks((8, 1024, 768), 50_304), num_chunks((8, 1024, 2048), 256_000)
        (8, 8)
    """
    parts = 1 if mesh is None else mesh.parts('batch')[0] * mesh.parts('length')[0]
    size = 4 * math.prod(shape_BTD[:2]) * vocab_size // parts
    if size <= LARGE_BYTES:
        return 1
    tokens = size // (4 * vocab_size)
    return max(_MIN_CHUNKS, min(math.ceil(size / LARGE_BYTES), tokens // shape_BTD[-1]))


def in_chunks(
    layer: Layer, variables: Any, x_BTD: jax.Array, context: ForwardContext
) -> jax.Array | TokenLogits:
    """The logits that a layer makes with `logits`: whole, or in chunks as the context says."""

    def head(x: jax.Array) -> Any:
        return layer.module().apply(variables, x, _method='logits')

    # No adapter belongs to a kernel that makes outputs, and no product of it is rounded.
    context = dataclasses.replace(context, adapters=None, precision=None)
    if context.loss_chunks is not None:
        found = TokenLogits(x_BTD, head, context.loss_chunks, context)
    else:
        found = TokenLogits(x_BTD, head, 1, context)
        chunks = num_chunks(x_BTD.shape, found.shape[-1], context.mesh)
        found = dataclasses.replace(found, chunks=chunks)
    return found if found.chunks > 1 else found.whole()
