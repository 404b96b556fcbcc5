import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.symbolic import recipes
from trainer.symbolic.component import Number, require_fraction


class Dropout(Layer):
    """Zeroes each element with probability `rate` and scales the rest, in training only.

    Srivastava et al. 2014. The rate is traced: trials with other rates share one compiled program.
    Without dropout, the field that holds this layer is None; then no masks are drawn.
    """

    is_pointwise = True

    rate: Number = 0.1

    usual = {'rate': recipes.DROPOUT}

    def check(self) -> None:
        require_fraction(self, 'rate')

    def forward(self, x: jax.Array) -> jax.Array:
        if not self.training:
            return x
        keep = 1.0 - jnp.asarray(self.rate, jnp.float32)
        mask = jax.random.bernoulli(self.rng('dropout'), keep, x.shape)
        return jnp.where(mask, x / keep.astype(x.dtype), 0).astype(x.dtype)
