"""Exchange of all choices of tokens, a limited number of rows at a time."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from trainer.layers.grouped_product import Kernels, Run
from trainer.layers.token_exchange import Exchange

_SLACK = 1.5
"""Rows that two devices exchange in a round, as a multiple of their number with equal loads."""


class _Sends(NamedTuple):
    """The choices that a device sends, in the order of the devices of their experts.

    Attributes:
        order_M: numbers of the choices.
        expert_M: number of the expert of each choice, on its device.
        begins_P: index in `order_M` of the first choice for each device.
        sizes_P: number of choices for each device.
    """

    order_M: jax.Array
    expert_M: jax.Array
    begins_P: jax.Array
    sizes_P: jax.Array

    @classmethod
    def of(cls, experts_M: jax.Array, devices: int, per_device: int) -> '_Sends':
        device_M = experts_M // per_device
        sizes_P = jnp.bincount(device_M, length=devices)
        begins_P = jnp.cumsum(sizes_P) - sizes_P
        order_M = jnp.argsort(device_M, stable=True)
        return cls(order_M, experts_M % per_device, begins_P, sizes_P)

    def choices(self, number: Any, places: int) -> jax.Array:
        """Numbers of the choices of a round [P, places]; that of no choice is M."""
        at_PC = number * places + jnp.arange(places)[None]
        choice_PC = self.order_M.at[self.begins_P[:, None] + at_PC].get(mode='clip')
        return jnp.where(at_PC < self.sizes_P[:, None], choice_PC, len(self.order_M))


def exchanged(
    run: Run, x_ND: jax.Array, experts_NK: jax.Array, kernels: Kernels, exchange: Exchange
) -> jax.Array:
    """The results of experts on all devices, inside of `Exchange.mapped`: [N, D] -> [N, K, D].

    No choice of a token is dropped, and no device needs memory for the worst case: two devices
    exchange a limited number of rows in a round. Equal loads need one round, and others as many
    as the fullest pair of devices needs. The backward pass computes all but the first one again.

    Args:
        run: the experts of this device. Rows after those of all experts are padding, whose results
            do not matter.
        experts_NK: the experts of each token, of all devices.
        kernels: of the experts of this device.
    """
    devices, per_device = exchange.parts(exchange.experts), len(kernels['up'])
    sends = _Sends.of(experts_NK.reshape(-1), devices, per_device)
    fullest = len(x_ND) * min(experts_NK.shape[1], per_device)
    places = min(fullest, math.ceil(_SLACK * experts_NK.size / devices))
    one = functools.partial(_round, run, exchange.experts, places)
    first_PCD = one(0, x_ND, kernels, sends)
    none_MD = jnp.zeros_like(first_PCD, shape=(experts_NK.size, x_ND.shape[1]))
    y_MD = none_MD.at[sends.choices(0, places)].add(first_PCD, mode='drop')
    rounds = lax.pmax(-(-jnp.max(sends.sizes_P) // places), (*exchange.batch, *exchange.length))
    y_MD = _with_more_rounds(one, places, y_MD, x_ND, kernels, sends, rounds)
    return y_MD.reshape(*experts_NK.shape, -1)


def _round(
    run: Run,
    axes: tuple[str, ...],
    places: int,
    number: Any,
    x_ND: jax.Array,
    kernels: Kernels,
    sends: _Sends,
) -> jax.Array:
    """Results of the choices of a round [P, places, D]."""
    per_device = len(kernels['up'])
    choice_PC = sends.choices(number, places)
    token_PC = choice_PC // (len(sends.order_M) // len(x_ND))
    sent_PCD = x_ND.at[token_PC].get(mode='fill', fill_value=0)
    expert_PC = sends.expert_M.at[choice_PC].get(mode='fill', fill_value=per_device)
    traded = functools.partial(
        lax.all_to_all, axis_name=axes, split_axis=0, concat_axis=0, tiled=True
    )
    expert_R = traded(expert_PC).reshape(-1)
    order_R = jnp.argsort(expert_R, stable=True)
    rows_RD = traded(sent_PCD).reshape(-1, x_ND.shape[1])[order_R]
    y_RD = run(rows_RD, kernels, jnp.bincount(expert_R, length=per_device))
    y_PCD: jax.Array = traded(y_RD[jnp.argsort(order_R)].reshape(*choice_PC.shape, -1))
    return y_PCD


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _with_more_rounds(
    one: Callable[..., jax.Array],
    places: int,
    y_MD: jax.Array,
    x_ND: jax.Array,
    kernels: Kernels,
    sends: _Sends,
    rounds: jax.Array,
) -> jax.Array:
    """Adds the results of all rounds after the first one; JAX has no gradient of such a loop."""

    def added(number: jax.Array, y_MD: jax.Array) -> jax.Array:
        choice_PC = sends.choices(number, places)
        return y_MD.at[choice_PC].add(one(number, x_ND, kernels, sends), mode='drop')

    y_MD = _over_rounds(added, y_MD, rounds)
    return y_MD


def _forward(one: Any, places: int, y_MD: jax.Array, *others: Any) -> tuple[jax.Array, Any]:
    return _with_more_rounds(one, places, y_MD, *others), others


def _backward(one: Any, places: int, saved: Any, slope_MD: jax.Array) -> tuple[Any, ...]:
    x_ND, kernels, sends, rounds = saved

    def added(number: jax.Array, slopes: Any) -> Any:
        _, slopes_of = jax.vjp(lambda *given: one(number, *given, sends), x_ND, kernels)
        of_round = slope_MD.at[sends.choices(number, places)].get(mode='fill', fill_value=0)
        return jax.tree.map(jnp.add, slopes, slopes_of(of_round))

    zeros = jax.tree.map(jnp.zeros_like, (x_ND, kernels))
    return slope_MD, *_over_rounds(added, zeros, rounds), None, None


_with_more_rounds.defvjp(_forward, _backward)


def _over_rounds(step: Callable[[jax.Array, Any], Any], begin: Any, rounds: jax.Array) -> Any:
    def body(at: Any) -> Any:
        return at[0] + 1, step(*at)

    return lax.while_loop(lambda at: at[0] < rounds, body, (jnp.int32(1), begin))[1]
