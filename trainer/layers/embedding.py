import math

import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.initialization import Gaussian, Initializer, table_init
from trainer.layers.linear import Linear
from trainer.symbolic.component import require_positive


class Embedding(Layer):
    """A table with one vector per token: [B, T] int -> [B, T, dims].

    Attributes:
        vocab_size: rows of the table.
        dims: width of the model.
        scale_sqrt_depth: multiplies embedded tokens, but not logits, by sqrt(dims).
        init: of a new table; None for a normal distribution of deviation 1 / sqrt(dims).
    """

    vocab_size: int
    dims: int
    scale_sqrt_depth: bool = True
    init: Initializer | None = None

    def check(self) -> None:
        require_positive(self, 'vocab_size', 'dims')

    def forward(self, ids_BT: jax.Array) -> jax.Array:
        # A new table has variance 1 / dims, for `attend`; the factor below undoes it.
        # Features are gathered first, since the batch cannot be laid out by rows split over fsdp.
        table_VD = self.constrain(self._table(keep_float32=True), ('vocab', 'features'))
        # Unsigned: an index of -1 would mean the last row. An index outside the rows gives NaN.
        # Float32 until here: thousands of gradients may add up in one row, where bfloat16 stops.
        x_BTD = jnp.take(table_VD, ids_BT.astype(jnp.uint32), axis=0).astype(self.dtype)
        if self.scale_sqrt_depth:
            x_BTD = x_BTD * math.sqrt(self.dims)
        return self.constrain(x_BTD, ('batch', 'length', 'features'))

    def attend(self, x_BTD: jax.Array) -> jax.Array:
        """Logits over the vocabulary from the same table (Press & Wolf 2017), in float32."""
        logits_BTV = self.product('btd,vd->btv', x_BTD, self._table(), jnp.float32)
        return self.constrain(logits_BTV, ('batch', 'length', 'vocab'))

    def _table(self, keep_float32: bool = False) -> jax.Array:
        init = table_init(self.init or Gaussian(1 / math.sqrt(self.dims)))
        shape = (self.vocab_size, self.dims)
        return self.param('table', shape, ('vocab', 'embed'), init, keep_float32=keep_float32)


def token_logits(embedding: Embedding, head: Linear | None, x_BTD: jax.Array) -> jax.Array:
    """Logits in float32: from the head, or without one from the table of the embedding."""
    return embedding.call('attend', x_BTD) if head is None else head.call('logits', x_BTD)


def check_head(embedding: Embedding, head: Linear | None) -> None:
    """Raises ValueError unless the head has a logit for each token."""
    if head is not None and head.output_dims != embedding.vocab_size:
        raise ValueError(
            f'head.output_dims ({head.output_dims}) must equal embedding.vocab_size '
            f'({embedding.vocab_size})'
        )
