"""Rounds of the exchange of tokens, between devices that `jax.vmap` stands for."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.layers.exchange_rounds import exchanged
from trainer.layers.grouped_product import grouped_product
from trainer.layers.token_exchange import Exchange

DEVICES, TOKENS, EXPERTS = 4, 6, 8
MESH = SimpleNamespace(shape={'expert': DEVICES})


def test_fuller_experts_have_the_results_and_gradients_of_all_their_tokens() -> None:
    x_PND = jax.random.normal(jax.random.key(0), (DEVICES, TOKENS, 3))
    up_PEDF = jax.random.normal(jax.random.key(1), (DEVICES, EXPERTS // DEVICES, 3, 3))
    # All tokens of two devices choose experts of the first one, so three rounds are needed.
    experts_PNK = np.random.default_rng(0).integers(0, EXPERTS, (DEVICES, TOKENS, 2))
    experts_PNK[1:3] = [0, 1]
    exchange = Exchange(MESH, batch=('expert',), length=(), experts=('expert',), hidden=())

    def run(x_ND: Any, kernels: Any, sizes_E: Any) -> Any:
        return jnp.tanh(grouped_product(x_ND, kernels['up'], sizes_E))

    def of_device(x_ND: Any, up_EDF: Any, experts_NK: Any) -> Any:
        y_NKD = exchanged(run, x_ND, experts_NK, {'up': up_EDF}, exchange)
        return jnp.sum(jnp.sin(y_NKD + 1))

    def of_all(x_PND: Any, up_PEDF: Any) -> Any:
        chosen_PNKDF = up_PEDF.reshape(EXPERTS, 3, 3)[experts_PNK]
        return jnp.sum(jnp.sin(jnp.tanh(jnp.einsum('pnd,pnkdf->pnkf', x_PND, chosen_PNKDF)) + 1))

    each = jax.vmap(jax.value_and_grad(of_device, (0, 1)), axis_name='expert')
    losses_P, slopes = jax.jit(each)(x_PND, up_PEDF, jnp.asarray(experts_PNK))
    loss, wanted = jax.jit(jax.value_and_grad(of_all, (0, 1)))(x_PND, up_PEDF)
    np.testing.assert_allclose(jnp.sum(losses_P), loss, rtol=1e-6)
    for one, other in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
