import functools
import operator
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
from flax.linen import initializers

from trainer.layers.base import Layer, current_frame
from trainer.layers.branch import apply_branch
from trainer.layers.context import current_context
from trainer.layers.dropout import Dropout
from trainer.layers.embedding import Embedding, check_head, token_logits
from trainer.layers.feed_forward import GatedFeedForward
from trainer.layers.future_tokens import FutureTokens
from trainer.layers.initialization import Bias
from trainer.layers.linear import Linear
from trainer.layers.logit_cap import soft_cap
from trainer.layers.norm_policy import NormPolicy, residual
from trainer.layers.normalization import Normalization, RMSNorm
from trainer.layers.position_embedding import PositionEmbedding
from trainer.layers.positions import Positions
from trainer.layers.stack import Stack
from trainer.layers.token_logits import TokenLogits, in_chunks
from trainer.layers.token_types import TokenTypes
from trainer.symbolic.component import OptionalNumber, require_above_zero
from trainer.symbolic.usual_values import UsualValue, choice

_NORM = choice(RMSNorm, 'Zhang & Sennrich 2019, T5, LLaMA')
_POLICY = choice('pre', 'Xiong et al. 2020, GPT-2, LLaMA')


class Identity(Layer):
    """x -> x: a candidate that leaves a layer out."""

    is_pointwise = True

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

    usual = {'norm': _NORM, 'norm_policy': _POLICY}

    @property
    def is_pointwise(self) -> bool:  # type: ignore[override]
        return self.layer.is_pointwise

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        if isinstance(self.layer, Identity):
            return x_BTD
        return residual(
            x_BTD,
            lambda x: apply_branch(self.layer, x, positions),
            self.norm,
            self.norm_policy,
            self.dropout,
        )


class TransformerBlock(Layer):
    """A mixer of positions, then a feed-forward layer, each with a residual connection.

    [B, T, D] -> [B, T, D]. Both are called with the activations, and with their `Positions` where
    `forward` takes them. They keep the shape. A mixer decodes with `cached` and `set_cached`.

    Attributes:
        attention: mixes positions: `Attention`, or any other layer.
        feed_forward: mixes features.
        attention_norm: applied to the input of the attention, or as `norm_policy` says.
        feed_forward_norm: the same for the feed-forward layer.
        dropout: applied to the results of both.
        norm_policy: place of the normalizations, as in `trainer.layers.norm_policy`.
        parallel: adds the results of both for one input, x + attention(n(x)) + feed_forward(n(x))
            (Chowdhery et al. 2022, section 2), where n is `attention_norm`. The other norm has no
            use.
    """

    attention: Layer
    feed_forward: Layer
    attention_norm: Normalization = RMSNorm()
    feed_forward_norm: Normalization = RMSNorm()
    dropout: Dropout | None = None
    norm_policy: NormPolicy = 'pre'
    parallel: bool = False

    usual = {
        'feed_forward': choice(GatedFeedForward, 'Shazeer 2020, PaLM, LLaMA'),
        'attention_norm': _NORM,
        'feed_forward_norm': _NORM,
        'norm_policy': _POLICY,
        'parallel': choice(False, 'Vaswani et al. 2017, GPT-3, LLaMA'),
    }

    def check(self) -> None:
        if self.parallel and self.norm_policy != 'pre':
            raise ValueError(
                f"parallel: both layers share one normalized input, which needs norm_policy='pre', "
                f'not {self.norm_policy!r}'
            )

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        mixer, channels = self.attention, self.feed_forward
        if self.parallel:
            return self._around([mixer, channels], self.attention_norm, x_BTD, positions)
        x_BTD = self._around([mixer], self.attention_norm, x_BTD, positions)
        return self._around([channels], self.feed_forward_norm, x_BTD, positions)

    def _around(
        self, layers: Sequence[Layer], norm: Normalization, x_BTD: jax.Array, *args: Any
    ) -> jax.Array:
        def branch(x_BTD: jax.Array) -> jax.Array:
            each = [apply_branch(layer, x_BTD, *args) for layer in layers]
            return functools.reduce(operator.add, each)

        return residual(x_BTD, branch, norm, self.norm_policy, self.dropout)


class TransformerLm(Layer):
    """A language model: token ids [B, T] -> logits [B, T, V] in float32.

    Attributes:
        embedding: of the tokens; it sets the width of the model.
        stack: the blocks.
        final_norm: applied before the logits; None for none, after blocks of 'post_skip'.
        head: projects to the vocabulary; None shares the table of the embedding.
        dropout: applied to the embedded tokens.
        position_embedding: added to them; None where only attention uses positions.
        token_types: added to them as well; None for one type.
        embedding_norm: applied to their sum, before `dropout` (Devlin et al. 2019).
        transform: applied to the result of the stack, before `final_norm`, such as a linear layer
            with an activation (Devlin et al. 2019). It keeps the width.
        shared_head_bias: 'zeros' adds a bias that starts at zero to the logits where `head` is
            None. A `Linear` has its own.
        logits_cap: each logit becomes logits_cap * tanh(logit / logits_cap) (Gemma Team 2024,
            section 2); None applies no cap.
        future_tokens: heads that predict later tokens in training; None for none.
    """

    embedding: Embedding
    stack: Stack
    final_norm: Normalization | None = RMSNorm()
    head: Linear | None = None
    dropout: Dropout | None = None
    position_embedding: PositionEmbedding | None = None
    logits_cap: OptionalNumber = None
    future_tokens: FutureTokens | None = None
    token_types: TokenTypes | None = None
    embedding_norm: Normalization | None = None
    transform: Layer | None = None
    shared_head_bias: Bias = 'none'

    usual = {
        'final_norm': _NORM,
        'logits_cap': UsualValue(30.0, 20.0, 50.0, 'Gemma 2 (Gemma Team 2024)'),
    }

    def check(self) -> None:
        require_above_zero(self, 'logits_cap')
        check_head(self.embedding, self.head)
        if self.head is not None and self.shared_head_bias != 'none':
            raise ValueError("shared_head_bias must be 'none' where there is a head: set head.bias")

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self.embedding.vocab_size

    def forward(self, ids_BT: jax.Array, positions: Positions | None = None) -> jax.Array:
        return self.logits(self.last_hidden(ids_BT, positions))

    def last_hidden(self, ids_BT: jax.Array, positions: Positions | None = None) -> jax.Array:
        """The activations that logits are made of, [B, T, D]."""
        if positions is None:
            positions = Positions.unpacked(ids_BT.shape)
        x_BTD = self.hidden(ids_BT, positions)
        if self.future_tokens is not None and (
            self.training or current_frame().module.is_initializing()
        ):
            outputs = functools.partial(self._outputs, current_frame().module)
            self.future_tokens(x_BTD, ids_BT, positions, outputs)
        return self._normalized(x_BTD)

    def hidden(self, ids_BT: jax.Array, positions: Positions) -> jax.Array:
        """The result of the stack, [B, T, D]."""
        x_BTD = self.embedding(ids_BT)
        if self.position_embedding is not None:
            x_BTD = x_BTD + self.position_embedding(positions.index_BT, self.embedding.dims)
        if self.token_types is not None:
            x_BTD = x_BTD + self.token_types(ids_BT, self.embedding.dims, positions)
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)
        if self.dropout is not None:
            x_BTD = self.dropout(x_BTD)
        return self.stack(x_BTD, positions)

    def _outputs(self, module: nn.Module, x_BTD: jax.Array) -> jax.Array | TokenLogits:
        x_BTD, context = self._normalized(x_BTD), current_context()
        if context.loss_chunks == 1 or module.is_initializing():
            return self.logits(x_BTD)
        return in_chunks(self, module.variables, x_BTD, context)

    def _normalized(self, x_BTD: jax.Array) -> jax.Array:
        if self.transform is not None:
            x_BTD = self.transform(x_BTD)
        return x_BTD if self.final_norm is None else self.final_norm(x_BTD)

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """Logits of the result of `last_hidden`, in float32."""
        logits_BTV = token_logits(self.embedding, self.head, x_BTD)
        if self.shared_head_bias != 'none':
            logits_BTV += self.param(
                'head_bias', (self.vocab_size,), ('vocab',), initializers.zeros, decay=False
            )
        return logits_BTV if self.logits_cap is None else soft_cap(logits_BTV, self.logits_cap)
