"""The learner: how gradients change parameters."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.component import Component, Number, OptionalNumber, require_positive
from trainer.learner.optimizers import AdamW, Mask, Optimizer
from trainer.learner.schedules import Constant, Schedule
from trainer.metrics import Count, Metrics, WeightedScalar
from trainer.state import TrainState


@dataclasses.dataclass(frozen=True)
class Update:
    """What one step of a learner returns.

    Attributes:
        before: the state before the step.
        params: the new parameters.
        opt_state: the new state of the optimizer.
        ema_params: the new averages of the parameters.
        is_valid: whether the step counts; what is not finite, say, changes nothing.
        metrics: the learning rate, the norm of the gradients, and the steps that were skipped.
    """

    before: TrainState
    params: Any
    opt_state: Any
    ema_params: Any
    is_valid: jax.Array
    metrics: Metrics

    def state(self, non_trainable: Any) -> TrainState:
        """The state after the step. A step that is skipped is a step, too."""
        before = self.before
        kept = before.params, before.non_trainable, before.opt_state, before.ema_params
        new = self.params, non_trainable, self.opt_state, self.ema_params
        valid = jax.tree.map(lambda n, k: jnp.where(self.is_valid, n, k), new, kept)
        return TrainState(before.step + 1, *valid)


class Learner(Component):
    """Gradients -> clipping -> optimizer -> weight decay -> new parameters.

    Attributes:
        learning_rate: its peak; the schedule multiplies it.
        schedule: the factor at each step.
        optimizer: what to do with the gradients.
        clip_gradient_norm_to_value: gradients whose global norm is above this are scaled down to
            it; None clips nothing.
        microbatches: accumulate gradients over so many equal parts of each batch.
        ema_decay: evaluate and decode with an exponential average of the parameters, of which a
            step keeps this much, or less at the beginning: min(decay, (1 + t) / (10 + t)). None
            averages nothing.
        enable_skip_step_on_gradient_anomalies: a step whose gradients are not finite changes
            nothing but the number of steps.
    """

    learning_rate: Number
    schedule: Schedule = Constant()
    optimizer: Optimizer = AdamW()
    clip_gradient_norm_to_value: OptionalNumber = 1.0
    microbatches: int = 1
    ema_decay: OptionalNumber = None
    enable_skip_step_on_gradient_anomalies: bool = True

    def check(self) -> None:
        if self.learning_rate < 0:
            raise ValueError(f'learning_rate must not be negative: {self.learning_rate}')
        clip = self.clip_gradient_norm_to_value
        if clip is not None and clip <= 0:
            raise ValueError(f'clip_gradient_norm_to_value must be positive: {clip}')
        require_positive(self, 'microbatches')
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise ValueError(f'ema_decay must lie in [0, 1): {self.ema_decay}')

    def init(self, params: Any, decay_mask: Mask) -> Any:
        """The state of the optimizer for new parameters."""
        return self.optimizer.make(jnp.zeros(()), decay_mask).init(params)

    def init_ema(self, params: Any) -> Any:
        """The averages of new parameters; {} where none are asked for."""
        return {} if self.ema_decay is None else jax.tree.map(jnp.copy, params)

    def update(
        self, state: TrainState, gradients: Any, loss: WeightedScalar, decay_mask: Mask
    ) -> Update:
        """One step.

        Args:
            state: before the step.
            gradients: a tree like its parameters.
            loss: of the batch.
            decay_mask: a tree like the parameters, True where weight decay applies.
        """
        norm = optax.tree.norm(gradients)
        if self.clip_gradient_norm_to_value is not None:
            scale = jnp.minimum(1.0, self.clip_gradient_norm_to_value / jnp.maximum(norm, 1e-12))
            gradients = jax.tree.map(lambda g: g * scale, gradients)
        learning_rate = self.learning_rate * self.schedule.factor(state.step)
        optimizer = self.optimizer.make(learning_rate, decay_mask)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        is_valid = jnp.ones((), bool)
        if self.enable_skip_step_on_gradient_anomalies:
            # That of a loss which is not finite goes on into the gradients nearly always.
            is_valid = jnp.isfinite(norm) & jnp.isfinite(loss.total)
        valid = is_valid.astype(jnp.float32)
        metrics = {
            'learning_rate': WeightedScalar(learning_rate, jnp.ones((), jnp.float32)),
            'gradient_norm': WeightedScalar(jnp.where(is_valid, norm, 0.0), valid),
            'skipped_steps': Count(1 - valid),
        }
        return Update(state, params, opt_state, self._averaged(state, params), is_valid, metrics)

    def _averaged(self, state: TrainState, params: Any) -> Any:
        if self.ema_decay is None:
            return {}
        step = state.step.astype(jnp.float32)
        decay = jnp.minimum(self.ema_decay, (1 + step) / (10 + step))
        return optax.incremental_update(params, state.ema_params, 1 - decay)
