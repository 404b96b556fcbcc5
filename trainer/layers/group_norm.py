import math

import jax
import jax.numpy as jnp

from trainer.layers.normalization import Normalization
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue


class GroupNorm(Normalization):
    """(x - mean) / std * (1 + scale) + bias over groups of channels: [B, ..., D] -> [B, ..., D].

    Wu & He 2018. Mean and standard deviation are computed for each example. So there are no running
    statistics, and small batches work as well as large ones.

    Attributes:
        num_groups: groups of channels; each is normalized by itself, over all positions.
    """

    num_groups: int = 32

    usual = {'num_groups': UsualValue(32, 16, 32, 'Wu & He 2018')}

    def check(self) -> None:
        super().check()
        require_positive(self, 'num_groups')

    def forward(self, x: jax.Array) -> jax.Array:
        dims = x.shape[-1]
        if dims % self.num_groups:
            raise UserError(
                f'{self.sym_path}: num_groups ({self.num_groups}) must divide the {dims} channels'
            )
        scale, bias = self.vector('scale', x), self.vector('bias', x)
        size = dims // self.num_groups
        positions = math.prod(x.shape[1:-1])
        wide = x.astype(jnp.float32).reshape(len(x), positions, self.num_groups, size)
        centered = wide - jnp.mean(wide, axis=(1, 3), keepdims=True)
        variance = jnp.mean(jnp.square(centered), axis=(1, 3), keepdims=True)
        normalized = (centered * jax.lax.rsqrt(variance + self.epsilon)).reshape(x.shape)
        scaled = normalized * (1 + scale) + bias
        return scaled.astype(x.dtype)
