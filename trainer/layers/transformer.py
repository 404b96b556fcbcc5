from typing import Any

import jax

from trainer.layers.attention import Attention
from trainer.layers.base import Layer
from trainer.layers.dropout import Dropout
from trainer.layers.embedding import Embedding, check_head, token_logits
from trainer.layers.feed_forward import FeedForward
from trainer.layers.linear import Linear
from trainer.layers.logit_cap import soft_cap
from trainer.layers.norm_policy import NormPolicy, residual
from trainer.layers.normalization import Normalization, RMSNorm
from trainer.layers.position_embedding import PositionEmbedding
from trainer.layers.positions import Positions
from trainer.layers.stack import Stack
from trainer.symbolic.component import OptionalNumber, require_above_zero


class Identity(Layer):
    """x -> x: a candidate that leaves a layer out."""

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        return x_BTD


class Residual(Layer):
    """x + dropout(layer(norm(x))), or as `norm_policy` says: [B, T, D] -> [B, T, D].

    With `Identity` it adds nothing, so that a search can leave a layer out.

    Attributes:
        layer: any layer that keeps the shape, such as attention or feed-forward.
        norm: applied to its input, or as `norm_policy` says.
        dropout: applied to its result.
        norm_policy: place of the normalization, as in `trainer.layers.norm_policy`.
    """

    layer: Layer
    norm: Normalization = RMSNorm()
    dropout: Dropout | None = None
    norm_policy: NormPolicy = 'pre'

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        if isinstance(self.layer, Identity):
            return x_BTD
        return residual(
            x_BTD, lambda x: self.layer(x, positions), self.norm, self.norm_policy, self.dropout
        )


class TransformerBlock(Layer):
    """Attention, then feed-forward, each with a residual connection: [B, T, D] -> [B, T, D].

    Attributes:
        attention: mixes positions.
        feed_forward: mixes features.
        attention_norm: applied to the input of the attention, or as `norm_policy` says.
        feed_forward_norm: the same for the feed-forward layer.
        dropout: applied to the results of both.
        norm_policy: place of the normalizations, as in `trainer.layers.norm_policy`.
    """

    attention: Attention
    feed_forward: FeedForward
    attention_norm: Normalization = RMSNorm()
    feed_forward_norm: Normalization = RMSNorm()
    dropout: Dropout | None = None
    norm_policy: NormPolicy = 'pre'

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        x_BTD = self._around(self.attention, self.attention_norm, x_BTD, positions)
        return self._around(self.feed_forward, self.feed_forward_norm, x_BTD, positions)

    def _around(self, layer: Layer, norm: Normalization, x_BTD: jax.Array, *args: Any) -> jax.Array:
        return residual(x_BTD, lambda x: layer(x, *args), norm, self.norm_policy, self.dropout)


class TransformerLm(Layer):
    """A language model: token ids [B, T] -> logits [B, T, V] in float32.

    Attributes:
        embedding: of the tokens; it sets the width of the model.
        stack: the blocks.
        final_norm: applied before the logits.
        head: projects to the vocabulary; None shares the table of the embedding.
        dropout: applied to the embedded tokens.
        position_embedding: added to them; None where only attention uses positions.
        logits_cap: each logit becomes logits_cap * tanh(logit / logits_cap) (Gemma Team 2024,
            section 2); None applies no cap.
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
        check_head(self.embedding, self.head)

    def forward(self, ids_BT: jax.Array, positions: Positions | None = None) -> jax.Array:
        if positions is None:
            positions = Positions.unpacked(ids_BT.shape)
        x_BTD = self.embedding(ids_BT)
        if self.position_embedding is not None:
            x_BTD = x_BTD + self.position_embedding(positions.index_BT, self.embedding.dims)
        if self.dropout is not None:
            x_BTD = self.dropout(x_BTD)
        x_BTD = self.final_norm(self.stack(x_BTD, positions))
        logits_BTV = token_logits(self.embedding, self.head, x_BTD)
        return logits_BTV if self.logits_cap is None else soft_cap(logits_BTV, self.logits_cap)
