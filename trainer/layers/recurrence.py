"""The base of mixers with a state, and scans over positions in chunks."""

import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.declared_flops import counted_products
from trainer.layers.positions import Positions

_CHUNK = 64
"""Positions that a linear scan takes at once."""


class Recurrent(Layer):
    """Base of mixers with a state of constant size: [B, T, D] -> [B, T, D].

    The state starts at zero with each segment of a row, and stays as it is over padding. Decoding
    caches it. Positions follow each other, so each device has all positions of its examples. A
    prefix is read in one direction, too.
    """

    def carried(self, name: str, shape: tuple[int, ...]) -> jax.Array:
        """The float32 state before the first position: zeros, or the cached one."""
        if self.cache_length is None:
            return jnp.zeros(shape, jnp.float32)
        return self.cached(name, shape, jnp.float32)

    def carry(self, name: str, state: jax.Array) -> None:
        """Caches the state after the last position, if this is decoding."""
        if self.cache_length is not None:
            self.set_cached(name, state)

    def whole(self, x_BTNH: jax.Array) -> jax.Array:
        """Features of heads at all positions on each device."""
        return self.constrain(x_BTNH, ('batch', None, 'heads', 'kv'))


def linear_scan(
    a_BT: jax.Array, x_BT: jax.Array, positions: Positions, start_B: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """h[t] = a[t] * h[t - 1] + x[t] for each feature, in float32.

    Chunks are scanned as a tree, and their last values one after another.

    Args:
        a_BT: factors [B, T, ...], float32.
        x_BT: the terms.
        start_B: the value before the first position.

    Returns:
        All values, and the last one.

    Example:
        >>> half, one = jnp.full((1, 3), 0.5), jnp.ones((1, 3))
        >>> linear_scan(half, one, Positions.unpacked((1, 3)), jnp.zeros(1))[0].tolist()
        [[1.0, 1.5, 1.75]]
    """

    def over(mask_BT: jax.Array) -> jax.Array:
        return mask_BT.reshape(*mask_BT.shape, *[1] * (a_BT.ndim - 2))

    is_token, length = over(positions.is_token_BT), a_BT.shape[1]
    # A product is exact with a zero, unlike a sum of logarithms.
    a_BT = jnp.where(is_token, jnp.where(over(positions.begins_BT), 0.0, a_BT), 1.0)
    chunk = min(_CHUNK, length)
    a_BCc = in_chunks(a_BT, chunk, 1.0)
    x_BCc = in_chunks(jnp.where(is_token, x_BT, 0.0), chunk)
    with counted_products():
        a_BCc, x_BCc = jax.lax.associative_scan(_followed_by, (a_BCc, x_BCc), axis=2)
        ends = jnp.moveaxis(a_BCc[:, :, -1], 1, 0), jnp.moveaxis(x_BCc[:, :, -1], 1, 0)
        end_B, starts_CB = jax.lax.scan(lambda h, ax: (ax[0] * h + ax[1], h), start_B, ends)
        h_BCc = a_BCc * jnp.moveaxis(starts_CB, 0, 1)[:, :, None] + x_BCc
    return h_BCc.reshape(len(a_BT), -1, *a_BT.shape[2:])[:, :length], end_B


def _followed_by(
    first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return first[0] * second[0], second[0] * first[1] + second[1]


def in_chunks(x_BT: jax.Array, chunk: int, filling: float | None = 0.0) -> jax.Array:
    """Splits positions: [B, T, ...] -> [B, C, chunk, ...], filled up at the end.

    Args:
        filling: a value; None repeats the last one of each row.
    """
    widths = [(0, 0), (0, -x_BT.shape[1] % chunk)] + [(0, 0)] * (x_BT.ndim - 2)
    if filling is None:
        padded = jnp.pad(x_BT, widths, mode='edge')
    else:
        padded = jnp.pad(x_BT, widths, constant_values=filling)
    return padded.reshape(len(x_BT), -1, chunk, *x_BT.shape[2:])
