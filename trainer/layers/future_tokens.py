from collections.abc import Callable

import jax
import jax.numpy as jnp

from trainer.layers.base import Layer, label_weights
from trainer.layers.branch import apply_branch
from trainer.layers.positions import Positions
from trainer.layers.summed_ahead import Values
from trainer.layers.token_logits import TokenLogits
from trainer.metrics import WeightedScalar
from trainer.symbolic.component import Number, require_not_negative
from trainer.symbolic.usual_values import UsualValue


class FutureTokens(Layer):
    """Heads of a language model that predict later tokens, in training alone.

    Gloeckle et al. 2024, with heads in parallel. The first head predicts the token after the next
    one, and so on. Each head is a block on the result of the stack; the final norm and the output
    of the model are shared. Their mean cross-entropy, times `weight`, is an auxiliary loss. So
    evaluation, decoding and `log_pplx` do not change. A later token has the weight that it has as
    a label.

    Attributes:
        layers: the block of each head.
        weight: of their mean loss.
    """

    layers: list[Layer]
    weight: Number = 0.3

    usual = {'weight': UsualValue(0.3, 0.1, 1.0, '0.3: DeepSeek-V3; 1: Gloeckle et al. 2024')}

    def check(self) -> None:
        require_not_negative(self, 'weight')
        if not self.layers:
            raise ValueError('layers must not be empty: each predicts one more token')

    def forward(
        self,
        x_BTD: jax.Array,
        ids_BT: jax.Array,
        positions: Positions,
        logits: Callable[[jax.Array], jax.Array | TokenLogits],
    ) -> None:
        """Adds the loss of the heads; `logits` makes logits [B, T, V] of activations."""
        losses = []
        for ahead, layer in enumerate(self.layers, 2):
            logits_BTV = logits(apply_branch(layer, x_BTD, positions))
            labels_BT, weights_BT = _later(ids_BT, ahead), self._weights(positions, ahead)
            if isinstance(logits_BTV, TokenLogits):
                total, _ = logits_BTV.weighted_sum(_terms, weights_BT, labels_BT)
                loss = WeightedScalar(total, jnp.sum(weights_BT))
            else:
                loss = WeightedScalar.of(_terms(logits_BTV, labels_BT)[0], weights_BT)
            losses.append(loss.mean)
            self.add_summary(f'log_pplx_{ahead}', losses[-1])
        self.add_aux_loss('future_tokens', self.weight * jnp.mean(jnp.stack(losses)))

    def _weights(self, positions: Positions, ahead: int) -> jax.Array:
        """The weights of the later tokens, 0 where one is of another segment: float32 [B, T]."""
        is_there_BT = _later(positions.is_token_BT, ahead)
        if positions.segment_BT is not None:
            is_there_BT &= _later(positions.segment_BT, ahead) == positions.segment_BT
        if (rows := self.example_weights) is not None:
            is_there_BT &= jnp.any(rows.reshape(len(rows), -1) != 0, axis=1)[:, None]
        # The label of a position is the next token.
        weights_BT = label_weights()
        if weights_BT is None:
            return is_there_BT.astype(jnp.float32)
        return jnp.where(is_there_BT, _later(weights_BT, ahead - 1), 0)


def _terms(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, Values]:
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - of_label[..., 0], {}


def _later(x_BT: jax.Array, ahead: int) -> jax.Array:
    """The values `ahead` positions later; 0 after the end."""
    return jnp.pad(x_BT, ((0, 0), (0, ahead)))[:, ahead:]
