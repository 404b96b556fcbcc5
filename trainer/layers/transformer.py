"""Transformer blocks, and the language model made of them."""

import jax
import jax.numpy as jnp

from trainer.component import OptionalNumber, require_above_zero
from trainer.layers.attention import Attention
from trainer.layers.base import Layer
from trainer.layers.caps import soft_cap
from trainer.layers.dropout import Dropout
from trainer.layers.embedding import Embedding
from trainer.layers.feed_forward import FeedForward
from trainer.layers.linear import Linear
from trainer.layers.normalization import Normalization, RMSNorm
from trainer.layers.position_embedding import PositionEmbedding
from trainer.layers.positions import Positions
from trainer.layers.stack import Stack


class Identity(Layer):
    """x -> x: the choice to leave a layer out."""

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        return x_BTD


class Residual(Layer):
    """x + dropout(layer(norm(x))): [B, T, D] -> [B, T, D].

    Around `Identity` it adds nothing at all, so that a search can leave a layer out.

    Attributes:
        layer: any layer that keeps the shape, such as attention or feed-forward.
        norm: applied to its input (Xiong et al. 2020).
        dropout: applied to its result.
    """

    layer: Layer
    norm: Normalization = RMSNorm()
    dropout: Dropout | None = None

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        if isinstance(self.layer, Identity):
            return x_BTD
        y_BTD = self.layer(self.norm(x_BTD), positions)
        return x_BTD + (y_BTD if self.dropout is None else self.dropout(y_BTD))


class TransformerBlock(Layer):
    """Attention, then feed-forward, each with a residual connection: [B, T, D] -> [B, T, D].

    Attributes:
        attention: mixes positions.
        feed_forward: mixes features.
        attention_norm: applied to the input of the attention.
        feed_forward_norm: applied to the input of the feed-forward layer.
        dropout: applied to the result of both.
    """

    attention: Attention
    feed_forward: FeedForward
    attention_norm: Normalization = RMSNorm()
    feed_forward_norm: Normalization = RMSNorm()
    dropout: Dropout | None = None

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        x_BTD = x_BTD + self._drop(self.attention(self.attention_norm(x_BTD), positions))
        return x_BTD + self._drop(self.feed_forward(self.feed_forward_norm(x_BTD), positions))

    def _drop(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD if self.dropout is None else self.dropout(x_BTD)


class TransformerLm(Layer):
    """A language model: token ids [B, T] -> logits [B, T, V] in float32.

    Attributes:
        embedding: of the tokens; it says how wide the model is.
        stack: the blocks.
        final_norm: applied before the logits.
        head: projects to the vocabulary; None shares the table of the embedding.
        dropout: applied to the embedded tokens.
        position_embedding: what is added to them; None where attention alone knows positions.
        logits_cap: each logit becomes logits_cap * tanh(logit / logits_cap) (Gemma Team 2024,
            section 2); None leaves them as they are.
    """

    embedding: Embedding
    stack: Stack
    final_norm: Normalization = RMSNorm()
    head: Linear | None = None
    dropout: Dropout | None = None
    position_embedding: PositionEmbedding | None = None
    logits_cap: OptionalNumber = None

    def check(self) -> None:
        require_above_zero(self, 'logits_cap')
        if self.head is not None and self.head.output_dims != self.embedding.vocab_size:
            raise ValueError(
                f'head.output_dims ({self.head.output_dims}) must equal embedding.vocab_size '
                f'({self.embedding.vocab_size})'
            )

    def forward(self, ids_BT: jax.Array, positions: Positions | None = None) -> jax.Array:
        if positions is None:
            positions = Positions.unpacked(ids_BT.shape)
        x_BTD = self.embedding(ids_BT)
        if self.position_embedding is not None:
            x_BTD = x_BTD + self.position_embedding(positions.index_BT, self.embedding.dims)
        if self.dropout is not None:
            x_BTD = self.dropout(x_BTD)
        logits_BTV = self._logits(self.final_norm(self.stack(x_BTD, positions)))
        return logits_BTV if self.logits_cap is None else soft_cap(logits_BTV, self.logits_cap)

    def _logits(self, x_BTD: jax.Array) -> jax.Array:
        if self.head is None:
            return self.embedding.call('attend', x_BTD)
        return self.head(x_BTD).astype(jnp.float32)
