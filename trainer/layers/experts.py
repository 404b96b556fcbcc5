import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from trainer.layers.activations import Activation, activate
from trainer.layers.base import Layer
from trainer.layers.branch import apply_branch
from trainer.layers.grouped_product import grouped_product
from trainer.layers.initialization import Initializer, kernel_init
from trainer.layers.positions import Positions
from trainer.layers.router import Router, Routing
from trainer.symbolic.component import require_above_zero, require_positive
from trainer.symbolic.usual_values import UsualValue, choice


class Experts(Layer):
    """A mixture of feed-forward layers, some of which run for each token: [B, T, D] -> [B, T, D].

    Shazeer et al. 2017. A router chooses the experts of each token (`Router.experts_per_token`).
    Kernels have the logical axis `experts`, which the mesh axis `expert` divides.

    Without a capacity no token is dropped, so tokens do not see each other. With one, each expert
    has places for a limited number of tokens of a row, and earlier positions come first. Then a
    token depends on earlier ones of its row, also of another packed segment: they may take the
    place that it needs. It never depends on later ones or on other rows. Decoding drops nothing.

    Attributes:
        num_experts: number of experts.
        hidden_dims: hidden width of each expert.
        router: chooses the experts of each token.
        activation: applied to the gate, or to the hidden values without one.
        gated: experts are activation(x @ gate) * (x @ up) @ down, as `GatedFeedForward`; False for
            activation(x @ up) @ down.
        capacity_factor: places of an expert in each row, as a multiple of its share of the tokens
            if all had equally many. A dropped token has no result of this expert. None drops none.
        shared: a layer for all tokens, whose result is added (Dai et al. 2024); None for none.
        init: of new kernels; None for a normal distribution of deviation 1 / sqrt(inputs).
    """

    num_experts: int
    hidden_dims: int
    router: Router = Router()
    activation: Activation = 'silu'
    gated: bool = True
    capacity_factor: float | None = None
    shared: Layer | None = None
    init: Initializer | None = None

    usual = {
        'num_experts': UsualValue(64, 8, 128, '8: Mixtral; 64: GLaM, OLMoE; 128: Switch, Qwen3'),
        'activation': choice('silu', 'Mixtral (Jiang et al. 2024), OLMoE, DeepSeek-V3'),
        'gated': choice(True, 'Mixtral (Jiang et al. 2024), OLMoE, DeepSeek-V3'),
        'capacity_factor': UsualValue(1.25, 1.0, 2.0, 'Switch (Fedus et al. 2022), ST-MoE'),
    }

    @property
    def is_pointwise(self) -> bool:  # type: ignore[override]
        return self.shared is None or self.shared.is_pointwise

    def check(self) -> None:
        require_positive(self, 'num_experts', 'hidden_dims')
        require_above_zero(self, 'capacity_factor')
        if self.router.experts_per_token > self.num_experts:
            raise ValueError(
                f'router.experts_per_token ({self.router.experts_per_token}) must be at most '
                f'num_experts ({self.num_experts})'
            )

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        routing = self.router(x_BTD, self.num_experts, positions)
        if self.capacity_factor is None or self.cache_length is not None:
            y_BTKD = self._of_all(x_BTD, routing)
        else:
            y_BTKD = self._of_places(x_BTD, routing, self.capacity_factor)
        y_BTD = jnp.sum(y_BTKD * routing.weights_BTK[..., None].astype(self.dtype), axis=2)
        if self.shared is not None:
            y_BTD = y_BTD + apply_branch(self.shared, x_BTD, positions)
        return self.constrain(y_BTD, ('batch', 'length', 'features'))

    def _of_all(self, x_BTD: jax.Array, routing: Routing) -> jax.Array:
        """The results of all chosen experts [B, T, K, D], by rows in the order of experts."""
        experts_M = routing.experts_BTK.reshape(-1)
        order_M = jnp.argsort(experts_M, stable=True)
        sizes_E = jnp.bincount(experts_M, length=self.num_experts)
        tokens_MD = x_BTD.reshape(-1, x_BTD.shape[-1])[order_M // self.router.experts_per_token]
        y_MD = self._apply(tokens_MD, lambda x, kernel: grouped_product(x, kernel, sizes_E))
        return y_MD[jnp.argsort(order_M)].reshape(*routing.experts_BTK.shape, -1)

    def _of_places(self, x_BTD: jax.Array, routing: Routing, factor: float) -> jax.Array:
        """The results of the chosen experts [B, T, K, D], zero where they had no place."""
        examples, length, dims = x_BTD.shape
        rows_B1 = jnp.arange(examples)[:, None]
        experts_BM = routing.experts_BTK.reshape(examples, -1)  # Earlier positions first.
        share = experts_BM.shape[1] / self.num_experts
        places = min(length, math.ceil(factor * share))
        chosen_BME = jax.nn.one_hot(experts_BM, self.num_experts, dtype=jnp.int32)
        chosen_BME *= jnp.repeat(routing.is_token_BT, routing.experts_BTK.shape[-1], 1)[..., None]
        place_BM = jnp.sum(jnp.cumsum(chosen_BME, axis=1) * chosen_BME, axis=2) - 1
        is_kept_BM = (place_BM >= 0) & (place_BM < places)
        self.add_summary('dropped', 1 - jnp.sum(is_kept_BM) / jnp.maximum(jnp.sum(chosen_BME), 1))
        none = self.num_experts * places  # The place of dropped choices.
        at_BM = jnp.where(is_kept_BM, experts_BM * places + place_BM, none)
        token_BM = jnp.broadcast_to(jnp.arange(experts_BM.shape[1]), experts_BM.shape)
        token_BM = token_BM // self.router.experts_per_token
        source_BP = jnp.full((examples, none + 1), length).at[rows_B1, at_BM].set(token_BM)
        # Places without a token read the row of zeros at the end.
        padded_BTD = jnp.pad(x_BTD, ((0, 0), (0, 1), (0, 0)))
        given_BPD = padded_BTD[rows_B1, source_BP[:, :none]]
        y_BECD = self._apply(
            given_BPD.reshape(examples, self.num_experts, places, dims),
            lambda x, kernel: self.product('becd,edf->becf', x, kernel),
        )
        y_BPD = jnp.pad(y_BECD.reshape(examples, none, dims), ((0, 0), (0, 1), (0, 0)))
        return y_BPD[rows_B1, at_BM].reshape(*routing.experts_BTK.shape, dims)

    def _apply(self, x: jax.Array, multiplied: Callable[[jax.Array, jax.Array], jax.Array]) -> Any:
        """Runs each expert on its rows; `multiplied` takes rows and the kernels of all experts."""
        dims = x.shape[-1]
        hidden = multiplied(x, self._kernel('up', dims, self.hidden_dims))
        if self.gated:
            gating = multiplied(x, self._kernel('gate', dims, self.hidden_dims))
            hidden = activate(gating, self.activation) * hidden
        else:
            hidden = activate(hidden, self.activation)
        return multiplied(hidden, self._kernel('down', self.hidden_dims, dims))

    def _kernel(self, name: str, inputs: int, outputs: int) -> jax.Array:
        features = ('mlp', 'embed') if name == 'down' else ('embed', 'mlp')
        shape = (self.num_experts, inputs, outputs)
        used = self.router.experts_per_token / self.num_experts
        return self.param(name, shape, ('experts', *features), kernel_init(self.init), used=used)
