import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.positions import Positions
from trainer.layers.token_exchange import Exchange
from trainer.symbolic.component import OptionalNumber, require_not_negative, require_positive
from trainer.symbolic.usual_values import UsualValue, choice


class Routing(NamedTuple):
    """The experts of each token.

    Attributes:
        experts_BTK: numbers of the experts, best first.
        weights_BTK: factors of their results, float32.
        is_token_BT: False for padding.
    """

    experts_BTK: jax.Array
    weights_BTK: jax.Array
    is_token_BT: jax.Array


class Router(Layer):
    """Chooses the experts of each token by a linear score (Shazeer et al. 2017).

    Scores are float32 in any dtype of computations, so that rounding does not choose.

    Attributes:
        experts_per_token: number of experts of each token.
        normalize: divides the probabilities of the chosen experts by their sum, as Mixtral does;
            False takes them from the softmax over all experts, as Switch does.
        balance_loss: weight of the auxiliary loss that is 1 where all experts have equally many
            tokens (Fedus et al. 2022, equation 4). None leaves it out. With microbatches, each part
            is balanced by itself.
        z_loss: weight of the mean square of the logarithm of the sum of exponential scores (Zoph et
            al. 2022, equation 5). None leaves it out.
    """

    experts_per_token: int = 2
    normalize: bool = True
    balance_loss: OptionalNumber = 0.01
    z_loss: OptionalNumber = 0.001

    usual = {
        'experts_per_token': UsualValue(2, 1, 8, '2: Mixtral; 1: Switch; 8: OLMoE, DeepSeek-V3'),
        'normalize': choice(True, 'Mixtral (Jiang et al. 2024), DeepSeek-V3'),
        'balance_loss': UsualValue(0.01, 0.001, 0.02, 'Switch (Fedus et al. 2022), ST-MoE, OLMoE'),
        'z_loss': UsualValue(1e-3, 1e-4, 2e-3, 'ST-MoE (Zoph et al. 2022), OLMoE'),
    }

    def check(self) -> None:
        require_positive(self, 'experts_per_token')
        require_not_negative(self, 'balance_loss', 'z_loss')

    def forward(
        self,
        x_BTD: jax.Array,
        num_experts: int,
        positions: Positions | None,
        exchange: Exchange | None = None,
    ) -> Routing:
        shape = (x_BTD.shape[-1], num_experts)
        kernel_DE = self.param('kernel', shape, ('embed', None), keep_float32=True, is_output=True)
        scores_BTE = self.product('btd,de->bte', x_BTD.astype(jnp.float32), kernel_DE)
        chances_BTE = jax.nn.softmax(scores_BTE)
        top: Callable[[jax.Array], Any] = functools.partial(jax.lax.top_k, k=self.experts_per_token)
        if exchange is not None:  # The compiler would gather the scores of all tokens.
            top = exchange.mapped(top, exchange.tokens, exchange.tokens)
        weights_BTK, experts_BTK = top(chances_BTE)
        if self.normalize:
            weights_BTK = weights_BTK / jnp.sum(weights_BTK, axis=-1, keepdims=True)
        routing = Routing(experts_BTK, weights_BTK, self._is_token(x_BTD.shape[:2], positions))
        self._add_losses(scores_BTE, chances_BTE, routing)
        return routing

    def _is_token(self, shape_BT: tuple[int, ...], positions: Positions | None) -> jax.Array:
        is_token_BT = (positions or Positions.unpacked(shape_BT)).is_token_BT
        if (weights := self.example_weights) is not None:
            # Weights may be of positions, and a token without a label is no padding.
            is_token_BT &= jnp.any(weights.reshape(len(weights), -1) > 0, axis=1)[:, None]
        return is_token_BT

    def _add_losses(self, scores_BTE: jax.Array, chances_BTE: jax.Array, routing: Routing) -> None:
        counted_BT = routing.is_token_BT.astype(jnp.float32)
        tokens = jnp.maximum(jnp.sum(counted_BT), 1.0)
        num_experts = scores_BTE.shape[-1]
        chosen_BTE = jnp.sum(jax.nn.one_hot(routing.experts_BTK, num_experts), axis=2)
        load_E, chance_E = (
            num_experts * jnp.sum(each * counted_BT[..., None], axis=(0, 1)) / tokens
            for each in (chosen_BTE / self.experts_per_token, chances_BTE)
        )
        self.add_summary('busiest_expert', jnp.max(load_E))
        if self.balance_loss is not None:
            self.add_aux_loss('balance', self.balance_loss * jnp.mean(load_E * chance_E))
        if self.z_loss is not None:
            squares_BT = jnp.square(jax.nn.logsumexp(scores_BTE, axis=-1))
            self.add_aux_loss('z', self.z_loss * jnp.sum(squares_BT * counted_BT) / tokens)
