import jax
import jax.numpy as jnp

from trainer.metrics import WeightedScalar
from trainer.symbolic.component import Component, OptionalNumber, require_above_zero


class SkipNonFinite(Component):
    """Skips a step whose gradients or loss are not finite: only the step count changes.

    Attributes:
        max_norm: also skips a step whose gradients have a global norm of this or more.
    """

    max_norm: OptionalNumber = None

    def check(self) -> None:
        require_above_zero(self, 'max_norm')

    def is_valid(self, norm: jax.Array, loss: WeightedScalar) -> jax.Array:
        """False if a step with this global norm of the gradients and this loss is skipped."""
        # A loss that is not finite nearly always makes its gradients non-finite, too.
        is_valid = jnp.isfinite(norm) & jnp.isfinite(loss.total)
        return is_valid if self.max_norm is None else is_valid & (norm < self.max_norm)
