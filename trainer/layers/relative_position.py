"""Positions in attention that are biases of its logits."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from trainer.layers.attention_position import AttentionPosition
from trainer.layers.initialization import Gaussian, Initializer, table_init
from trainer.symbolic.component import require_at_least
from trainer.symbolic.usual_values import UsualValue


class Alibi(AttentionPosition):
    """Subtracts slope * distance, with a slope for each head (Press et al. 2022).

    N slopes are 2^(-8 / N), 2^(-16 / N), … where N is a power of two. Else the last ones are those
    between, of twice the number. Without causal order, distances have no sign. Another number of
    heads has other slopes, so a child with more heads does not compute the function of its parent.
    """

    def bias(self, distance_BTS: jax.Array, num_heads: int, is_causal: bool) -> jax.Array:
        slope_N = jnp.asarray(slopes(num_heads), jnp.float32)
        return -slope_N[:, None, None] * jnp.abs(distance_BTS)[:, None].astype(jnp.float32)


def slopes(num_heads: int) -> list[float]:
    """The slopes of `Alibi`.

    Example:
        >>> slopes(3)
        [0.0625, 0.00390625, 0.25]
    """
    power = 2 ** int(math.log2(num_heads))
    between = range(1, 2 * (num_heads - power), 2)
    return [2.0 ** (-8 * n / power) for n in range(1, power + 1)] + [
        2.0 ** (-4 * n / power) for n in between
    ]


class RelativeBias(AttentionPosition):
    """Adds a learned bias for each head and range of distances (Raffel et al. 2020, section 2.1).

    Half of the ranges are single distances. The others grow as the logarithm of the distance. With
    the mask 'full', one half is for keys before a query, and the other for those after it. A child
    with other ranges inherits by their order, and does not compute the function of its parent.

    Attributes:
        num_buckets: ranges.
        max_distance: where the last range begins, at the latest.
        init: of new biases.
    """

    num_buckets: int = 32
    max_distance: int = 128
    init: Initializer = Gaussian(0.02)

    usual = {
        'num_buckets': UsualValue(32, 32, 64, 'T5 (Raffel et al. 2020)'),
        'max_distance': UsualValue(128, 128, 256, 'T5 (Raffel et al. 2020)'),
    }

    def check(self) -> None:
        require_at_least(self, 4, 'num_buckets')
        if self.num_buckets % 2 or self.max_distance <= self.num_buckets // 2:
            raise ValueError(
                f'num_buckets must be even, and max_distance above half of it: {self.num_buckets} '
                f'and {self.max_distance}'
            )

    def bias(self, distance_BTS: jax.Array, num_heads: int, is_causal: bool) -> jax.Array:
        shape = (self.num_buckets, num_heads)
        # Float32: each range sums the gradients of all pairs, and bfloat16 would lose most.
        init = table_init(self.init)
        table_RN = self.param('table', shape, (None, 'heads'), init, keep_float32=True)
        one_way = self.num_buckets if is_causal else self.num_buckets // 2
        range_P = jnp.asarray(ranges(one_way, self.max_distance))
        back_BTS = distance_BTS if is_causal else jnp.abs(distance_BTS)
        range_BTS = range_P[jnp.clip(back_BTS, 0, self.max_distance)]
        if not is_causal:
            range_BTS += jnp.where(distance_BTS < 0, one_way, 0)
        return jnp.moveaxis(table_RN[range_BTS], -1, 1)


def ranges(num_buckets: int, max_distance: int) -> np.ndarray:
    """The range of each distance from 0 to `max_distance`.

    Example:
        >>> ranges(4, 8).tolist()
        [0, 1, 2, 2, 3, 3, 3, 3, 3]
    """
    exact = num_buckets // 2
    distance = np.arange(max_distance + 1)
    # A sum of logarithms may fall short of a whole number by a rounding error.
    grown = np.log(np.maximum(distance, 1) / exact) / math.log(max_distance / exact) + 1e-9
    wide = exact + np.floor(grown * (num_buckets - exact)).astype(int)
    return np.where(distance < exact, distance, np.minimum(wide, num_buckets - 1))
