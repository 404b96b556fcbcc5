"""Token embeddings, which can serve as the output projection too."""

import math

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.layers.base import Layer
from trainer.symbolic.component import require_above_zero, require_positive


class Embedding(Layer):
    """A table of one vector a token: [B, T] int -> [B, T, dims].

    Attributes:
        vocab_size: rows of the table.
        dims: width of the model.
        scale_sqrt_depth: embedded tokens are multiplied by sqrt(dims); as logits, the table is not.
        init_std: standard deviation of a new table; None for 1 / sqrt(dims).
    """

    vocab_size: int
    dims: int
    scale_sqrt_depth: bool = True
    init_std: float | None = None

    def check(self) -> None:
        require_positive(self, 'vocab_size', 'dims')
        require_above_zero(self, 'init_std')

    def forward(self, ids_BT: jax.Array) -> jax.Array:
        # A table is drawn with variance 1 / dims, which suits `attend`; here that is undone.
        # Features are gathered first: a row that is split over fsdp does not suit the batch.
        table_VD = self.constrain(self._table(), ('vocab', 'features'))
        x_BTD = jnp.take(table_VD, ids_BT, axis=0)
        if self.scale_sqrt_depth:
            x_BTD = x_BTD * math.sqrt(self.dims)
        return self.constrain(x_BTD, ('batch', 'length', 'features'))

    def attend(self, x_BTD: jax.Array) -> jax.Array:
        """Logits over the vocabulary by the same table (Press & Wolf 2017), in float32."""
        logits_BTV = jnp.einsum(
            'btd,vd->btv', x_BTD, self._table(), preferred_element_type=jnp.float32
        )
        return self.constrain(logits_BTV, ('batch', 'length', 'vocab'))

    def _table(self) -> jax.Array:
        init = initializers.normal(self.init_std or 1 / math.sqrt(self.dims))
        return self.param('table', (self.vocab_size, self.dims), ('vocab', 'embed'), init)
