"""The learner: how gradients change parameters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trainer.component import Component, Number, OptionalNumber, require_positive
from trainer.learner.optimizers import AdamW, Mask, Optimizer
from trainer.learner.schedules import Constant, Schedule


class Update(NamedTuple):
    """What one step of a learner returns.

    Attributes:
        params: the new parameters.
        opt_state: the new state of the optimizer.
        metrics: float32 scalars by name: the learning rate and the norm of the gradients.
    """

    params: Any
    opt_state: Any
    metrics: dict[str, jax.Array]


class Learner(Component):
    """Gradients -> clipping -> optimizer -> weight decay -> new parameters.

    Attributes:
        learning_rate: its peak; the schedule multiplies it.
        schedule: the factor at each step.
        optimizer: what to do with the gradients.
        clip_gradient_norm_to_value: gradients whose global norm is above this are scaled down to
            it; None clips nothing.
        microbatches: accumulate gradients over so many equal parts of each batch.
    """

    learning_rate: Number
    schedule: Schedule = Constant()
    optimizer: Optimizer = AdamW()
    clip_gradient_norm_to_value: OptionalNumber = 1.0
    microbatches: int = 1

    def check(self) -> None:
        if self.learning_rate < 0:
            raise ValueError(f'learning_rate must not be negative: {self.learning_rate}')
        clip = self.clip_gradient_norm_to_value
        if clip is not None and clip <= 0:
            raise ValueError(f'clip_gradient_norm_to_value must be positive: {clip}')
        require_positive(self, 'microbatches')

    def init(self, params: Any, decay_mask: Mask) -> Any:
        """The state of the optimizer for new parameters."""
        return self.optimizer.make(jnp.zeros(()), decay_mask).init(params)

    def update(
        self, params: Any, gradients: Any, opt_state: Any, step: jax.Array, decay_mask: Mask
    ) -> Update:
        """One step.

        Args:
            params: the parameters, float32.
            gradients: a tree like them.
            opt_state: as `init` or the last step returned it.
            step: steps done before, int32.
            decay_mask: a tree like the parameters, True where weight decay applies.
        """
        norm = optax.tree.norm(gradients)
        if self.clip_gradient_norm_to_value is not None:
            scale = jnp.minimum(1.0, self.clip_gradient_norm_to_value / jnp.maximum(norm, 1e-12))
            gradients = jax.tree.map(lambda g: g * scale, gradients)
        learning_rate = self.learning_rate * self.schedule.factor(step)
        optimizer = self.optimizer.make(learning_rate, decay_mask)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        metrics = {'learning_rate': learning_rate, 'gradient_norm': norm}
        return Update(optax.apply_updates(params, updates), opt_state, metrics)
