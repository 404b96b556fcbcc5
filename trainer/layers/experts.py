import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from trainer.layers.activations import Activation, activate
from trainer.layers.base import Layer
from trainer.layers.branch import apply_branch
from trainer.layers.context import current_context, forward_context
from trainer.layers.exchange_rounds import exchanged
from trainer.layers.grouped_product import Kernels, grouped_product, in_order
from trainer.layers.initialization import Initializer, kernel_init
from trainer.layers.places import Places, results_at
from trainer.layers.positions import Positions
from trainer.layers.router import Router, Routing
from trainer.layers.token_exchange import Exchange
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
        what = f'an activation of {type(self).__name__} at {str(self.sym_path)!r}'
        exchange = Exchange.of(current_context().mesh, x_BTD.shape, what)
        routing = self.router(x_BTD, self.num_experts, positions, exchange)
        kernels = self._kernels(x_BTD.shape[-1])
        if self.capacity_factor is None or self.cache_length is not None:
            y_BTD = self._of_all(x_BTD, routing, kernels, exchange)
        else:
            y_BTD = self._of_places(x_BTD, routing, kernels, self.capacity_factor, exchange)
        if self.shared is not None:
            y_BTD = y_BTD + apply_branch(self.shared, x_BTD, positions)
        return self.constrain(y_BTD, ('batch', 'length', 'features'))

    def _of_all(
        self, x_BTD: jax.Array, routing: Routing, kernels: Kernels, exchange: Exchange | None
    ) -> jax.Array:
        """The weighted results of all chosen experts, by rows in the order of experts."""

        context = current_context()

        def run(x_ND: jax.Array, kernels: Kernels, sizes_E: jax.Array) -> jax.Array:
            with forward_context(context):  # The backward pass of a loop is outside of it.
                multiplied = functools.partial(grouped_product, sizes_E=sizes_E)
                return self._apply(x_ND, kernels, multiplied)

        def of_device(
            x_BTD: jax.Array, experts_BTK: jax.Array, weights_BTK: jax.Array, kernels: Kernels
        ) -> jax.Array:
            x_ND, experts_NK = (each.reshape(-1, each.shape[-1]) for each in (x_BTD, experts_BTK))
            if exchange is not None:
                x_ND, kernels = exchange.varying(x_ND, kernels)
            if exchange is None or not exchange.experts:
                y_NKD = in_order(run, x_ND, experts_NK, kernels)
            else:
                y_NKD = exchanged(run, x_ND, experts_NK, kernels, exchange)
            y_BTD = self._weighted(y_NKD.reshape(*experts_BTK.shape, -1), weights_BTK)
            if exchange is not None:
                y_BTD = jax.lax.psum(y_BTD, exchange.hidden)
            return y_BTD

        given = x_BTD, routing.experts_BTK, routing.weights_BTK, kernels
        if exchange is None:
            return of_device(*given)
        at, of_kernels = exchange.tokens, {name: exchange.kernel(name) for name in kernels}
        y_BTD: jax.Array = exchange.mapped(of_device, (at, at, at, of_kernels), at)(*given)
        return y_BTD

    def _of_places(
        self,
        x_BTD: jax.Array,
        routing: Routing,
        kernels: Kernels,
        factor: float,
        exchange: Exchange | None,
    ) -> jax.Array:
        """The weighted results of the chosen experts, without those that had no place."""
        length, count = routing.experts_BTK.shape[1:]
        places = min(length, math.ceil(factor * (length * count / self.num_experts)))

        def given_to(
            x_BTD: jax.Array, experts_BTK: jax.Array, is_token_BT: jax.Array
        ) -> tuple[jax.Array, ...]:
            experts_BM = experts_BTK.reshape(len(x_BTD), -1)  # Earlier positions first.
            chosen_BME = jax.nn.one_hot(experts_BM, self.num_experts, dtype=jnp.int32)
            chosen_BME *= jnp.repeat(is_token_BT, count, 1)[..., None]
            parts = 1 if exchange is None else exchange.parts(exchange.length)
            stored = -(-places // parts) * parts
            before_BE = None if exchange is None else exchange.before(jnp.sum(chosen_BME, axis=1))
            own = Places.of(chosen_BME, experts_BM, places, stored, before_BE)
            given_BECD, counts = own.filled(x_BTD), (own.num_kept, own.num_chosen)
            if exchange is not None:
                given_BECD, counts = exchange.sent(given_BECD), exchange.summed(counts)
            return given_BECD, own.at_BM, *counts

        def weighted(y_BECD: jax.Array, at_BM: jax.Array, weights_BTK: jax.Array) -> jax.Array:
            if exchange is not None:
                y_BECD = exchange.returned(y_BECD)
            y_BTKD = results_at(at_BM, y_BECD).reshape(*weights_BTK.shape, -1)
            return self._weighted(y_BTKD, weights_BTK)

        send: Callable[..., Any] = given_to
        receive: Callable[..., Any] = weighted
        if exchange is not None:
            at, rows, one = exchange.tokens, exchange.rows, PartitionSpec()
            send = exchange.mapped(given_to, (at, at, at), (rows, at, one, one))
            receive = exchange.mapped(weighted, (rows, at, at), at)
        given_BECD, at_BM, kept, chosen = send(x_BTD, routing.experts_BTK, routing.is_token_BT)
        self.add_summary('dropped', 1 - kept / jnp.maximum(chosen, 1))
        y_BECD = self._apply(
            given_BECD, kernels, lambda x, kernel: self.product('becd,edf->becf', x, kernel)
        )
        y_BTD: jax.Array = receive(y_BECD, at_BM, routing.weights_BTK)
        return y_BTD

    def _weighted(self, y_BTKD: jax.Array, weights_BTK: jax.Array) -> jax.Array:
        return jnp.sum(y_BTKD * weights_BTK[..., None].astype(self.dtype), axis=2)

    def _apply(
        self,
        x: jax.Array,
        kernels: Kernels,
        multiplied: Callable[[jax.Array, jax.Array], jax.Array],
    ) -> jax.Array:
        """Runs each expert on its rows; `multiplied` takes rows and a kernel of all experts."""
        hidden = multiplied(x, kernels['up'])
        if self.gated:
            hidden = activate(multiplied(x, kernels['gate']), self.activation) * hidden
        else:
            hidden = activate(hidden, self.activation)
        return multiplied(hidden, kernels['down'])

    def _kernels(self, dims: int) -> Kernels:
        kernels = {'up': self._kernel('up', dims, self.hidden_dims)}
        if self.gated:
            kernels['gate'] = self._kernel('gate', dims, self.hidden_dims)
        return kernels | {'down': self._kernel('down', self.hidden_dims, dims)}

    def _kernel(self, name: str, inputs: int, outputs: int) -> jax.Array:
        features = ('mlp', 'embed') if name == 'down' else ('embed', 'mlp')
        shape = (self.num_experts, inputs, outputs)
        used = self.router.experts_per_token / self.num_experts
        return self.param(name, shape, ('experts', *features), kernel_init(self.init), used=used)
