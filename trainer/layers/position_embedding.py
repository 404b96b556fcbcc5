import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.initialization import Gaussian, Initializer, table_init
from trainer.symbolic.component import require_above_zero, require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue


class PositionEmbedding(Layer):
    """Base: positions [B, T] int, width of the model -> vectors to add [B, T, dims]."""

    def forward(self, index_BT: jax.Array, dims: int) -> jax.Array:
        raise NotImplementedError(type(self).__name__)


class SinusoidalPositions(PositionEmbedding):
    """Sines, then cosines, of wavelengths that grow from 2π (Vaswani et al. 2017, section 3.5).

    Attributes:
        longest: tokens in which the slowest feature advances by one radian.
    """

    longest: float = 10_000.0

    usual = {'longest': UsualValue(1e4, 9e3, 1.1e4, 'Vaswani et al. 2017')}

    def check(self) -> None:
        require_above_zero(self, 'longest')

    def forward(self, index_BT: jax.Array, dims: int) -> jax.Array:
        if dims % 2:
            raise UserError(f'{self.sym_path}: the width of the model must be even: {dims}')
        half = dims // 2
        frequency_h = self.longest ** (-jnp.arange(half) / max(half - 1, 1))
        angle_BTh = index_BT[:, :, None].astype(jnp.float32) * frequency_h
        added_BTD = jnp.concatenate([jnp.sin(angle_BTh), jnp.cos(angle_BTh)], axis=-1)
        return self.constrain(added_BTD.astype(self.dtype), ('batch', 'length', 'features'))


class LearnedPositions(PositionEmbedding):
    """A vector for each position (Radford et al. 2018).

    Attributes:
        max_length: number of positions.
        init: of new vectors.
    """

    max_length: int
    init: Initializer = Gaussian(0.02)

    def check(self) -> None:
        require_positive(self, 'max_length')

    def forward(self, index_BT: jax.Array, dims: int) -> jax.Array:
        longest = self.cache_length or index_BT.shape[1]
        if longest > self.max_length:
            raise UserError(
                f'{self.sym_path}.max_length is {self.max_length}, but rows have {longest} '
                'positions'
            )
        init = table_init(self.init)
        shape = (self.max_length, dims)
        # Float32: each position sums the gradients of all rows, and bfloat16 would lose most.
        table_PD = self.param('table', shape, (None, 'embed'), init, keep_float32=True)
        table_PD = self.constrain(table_PD, (None, 'features'))
        added_BTD = jnp.take(table_PD, index_BT, axis=0).astype(self.dtype)
        return self.constrain(added_BTD, ('batch', 'length', 'features'))
