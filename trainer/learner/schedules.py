"""Learning-rate schedules: the factor of the learning rate at each step.

Lengths are traced numbers, so trials with other lengths share one compiled program. Optax's own
schedules cannot do this: they branch on their lengths in Python.
"""

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from trainer.symbolic.component import (
    Component,
    Count,
    Number,
    require_above_zero,
    require_not_negative,
    require_positive,
)
from trainer.symbolic.usual_values import UsualValue, over, span_at


class Schedule(Component):
    """A factor by step, with a linear warm-up.

    Attributes:
        warmup_steps: steps in which the factor rises linearly; it is 1 / warmup_steps at the first
            step. 0 for no warm-up.
    """

    warmup_steps: Count = 0

    usual_shares: ClassVar[dict[str, UsualValue]] = {
        'warmup_steps': UsualValue(
            0.03, 0.01, 0.1, 'BERT, Pythia 1 %, ViT 3 %, Goyal et al. 2017 and AlgoPerf 5 %'
        )
    }
    """Usual values that are shares of the steps of training."""

    def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
        stated = super().usual_values(experiment)
        # A schedule in another one counts other steps.
        if self.sym_ancestor(lambda owner: isinstance(owner, Schedule)) is None:
            for name, share in self.usual_shares.items():
                steps = over(span_at(experiment, 'train.num_train_steps'), share.scaled)
                stated |= {} if steps is None else {name: steps}
        return stated

    def check(self) -> None:
        require_not_negative(self, 'warmup_steps')

    @property
    def end(self) -> int | None:
        """The step from which a decay stays at its final factor; None if it has no end."""
        return None

    def factor(self, step: jax.Array) -> jax.Array:
        """The factor at `step` (int32, from 0), float32."""
        step = jnp.asarray(step, jnp.float32)
        ramp = jnp.minimum((step + 1) / jnp.maximum(self.warmup_steps, 1), 1.0)
        return ramp * self.after_warmup(step)

    def after_warmup(self, step: jax.Array) -> jax.Array:
        """The factor without the warm-up."""
        raise NotImplementedError(type(self).__name__)


class Constant(Schedule):
    """1 after the warm-up.

    Example:
        >>> [float(Constant(warmup_steps=4).factor(step)) for step in (0, 1, 9)]
        [0.25, 0.5, 1.0]
    """

    def after_warmup(self, step: jax.Array) -> jax.Array:
        return jnp.ones_like(step)


class Decay(Schedule):
    """Falls from 1 at the end of the warm-up to `final_factor`, then stays there.

    Attributes:
        decay_steps: the step at which the factor reaches `final_factor`, counted from the start
            of training; usually the number of training steps.
        final_factor: the factor after the decay.
        hold_steps: steps between the end of the warm-up and the start of the decay, with factor 1
            (warm-up, stable, decay: Hu et al. 2024).

    Example:
        >>> decay = LinearSchedule(warmup_steps=2, hold_steps=2, decay_steps=6)
        >>> [float(decay.factor(step)) for step in range(7)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0]
    """

    decay_steps: Count
    final_factor: Number = 0.0
    hold_steps: Count = 0

    usual = {'final_factor': UsualValue(0.1, 0.01, 0.1, 'GPT-3, LLaMA; 0: Bergsma et al. 2025')}
    usual_shares = Schedule.usual_shares | {
        'decay_steps': UsualValue(1.0, 0.9, 1.1, 'Hoffmann et al. 2022 (Chinchilla), appendix B'),
        'hold_steps': UsualValue(0.8, 0.7, 0.9, 'Hägele et al. 2024; 0.9: Hu et al. 2024'),
    }

    def check(self) -> None:
        super().check()
        require_not_negative(self, 'hold_steps')
        start = self.warmup_steps + self.hold_steps
        if self.decay_steps <= start:
            held = f' + hold_steps ({self.hold_steps})' if self.hold_steps else ''
            raise ValueError(
                f'decay_steps ({self.decay_steps}) must be above warmup_steps '
                f'({self.warmup_steps}){held}'
            )

    @property
    def end(self) -> int | None:
        return self.decay_steps

    def after_warmup(self, step: jax.Array) -> jax.Array:
        start = self.warmup_steps + self.hold_steps
        done = jnp.clip((step - start) / jnp.maximum(self.decay_steps - start, 1), 0.0, 1.0)
        return self.decayed(done)

    def decayed(self, done: jax.Array) -> jax.Array:
        """Falls from 1 at `done` = 0 to `final_factor` at `done` = 1."""
        return self.final_factor + (1 - self.final_factor) * self.remaining(done)

    def remaining(self, done: jax.Array) -> jax.Array:
        """Falls from 1 at `done` = 0 to 0 at `done` = 1."""
        raise NotImplementedError(type(self).__name__)


class LinearSchedule(Decay):
    """A straight line.

    Example:
        >>> [float(LinearSchedule(decay_steps=4).factor(step)) for step in (0, 1, 4, 9)]
        [1.0, 0.75, 0.0, 0.0]
    """

    usual = {'final_factor': UsualValue(0.0, 0.0, 0.1, 'BERT; Bergsma et al. 2025')}

    def remaining(self, done: jax.Array) -> jax.Array:
        return 1 - done


class Cosine(Decay):
    """Half a cosine (Loshchilov & Hutter 2017).

    Example:
        >>> [round(float(Cosine(decay_steps=4).factor(step)), 3) for step in (0, 2, 4)]
        [1.0, 0.5, 0.0]
    """

    def remaining(self, done: jax.Array) -> jax.Array:
        return 0.5 * (1 + jnp.cos(jnp.pi * done))


class Polynomial(Decay):
    """A power of the remaining or of the completed share of the decay.

    Attributes:
        power: 1 is a straight line.
        origin: 'limit' falls as (1 - done)^power, fast at first; 'start' as 1 - done^power, slowly
            at first.

    Example:
        >>> [float(Polynomial(decay_steps=4, power=2.0).factor(step)) for step in (0, 2, 4)]
        [1.0, 0.25, 0.0]
    """

    power: Number = 1.0
    origin: Literal['limit', 'start'] = 'limit'

    usual = {'power': UsualValue(1.0, 1.0, 2.0, 'BERT; 2: You et al. 2017 (LARS)')}

    def check(self) -> None:
        super().check()
        require_above_zero(self, 'power')

    def remaining(self, done: jax.Array) -> jax.Array:
        return (1 - done) ** self.power if self.origin == 'limit' else 1 - done**self.power


class Exponential(Decay):
    """Exponential decay: each step loses the same fraction.

    Example:
        >>> decay = Exponential(decay_steps=4, final_factor=0.01)
        >>> [round(float(decay.factor(step)), 4) for step in (0, 2, 4, 9)]
        [1.0, 0.1, 0.01, 0.01]
    """

    final_factor: Number = 0.1

    usual = {'final_factor': UsualValue(0.01, 0.003, 0.1, 'EfficientNet (Tan & Le 2019)')}

    def check(self) -> None:
        super().check()
        require_above_zero(self, 'final_factor')

    def decayed(self, done: jax.Array) -> jax.Array:
        return jnp.exp(done * jnp.log(jnp.asarray(self.final_factor, jnp.float32)))


class SqrtDecay(Schedule):
    """One over the square root of the step, without an end.

    Attributes:
        decay_start: the factor is 1 before this step; 0 starts at the end of the warm-up.

    Example:
        >>> decay = SqrtDecay(warmup_steps=4)
        >>> [float(decay.factor(step)) for step in (0, 3, 15)]
        [0.25, 1.0, 0.5]
    """

    decay_start: Count = 0

    usual_shares = Schedule.usual_shares | {
        'decay_start': UsualValue(0.02, 0.01, 0.04, 'T5 (Raffel et al. 2020); PaLM: 4 %')
    }

    def check(self) -> None:
        super().check()
        require_not_negative(self, 'decay_start')

    def after_warmup(self, step: jax.Array) -> jax.Array:
        start = jnp.maximum(jnp.maximum(self.decay_start, self.warmup_steps), 1)
        return jnp.sqrt(start / jnp.maximum(step + 1, start))


class Noam(Schedule):
    """The schedule of the first Transformer (Vaswani et al. 2017, section 5.3).

    It is meant for learning rate 1. Its peak, at the end of the warm-up, is (model_dims *
    warmup_steps)^-0.5.

    Attributes:
        model_dims: the width of the model.

    Example:
        >>> [round(float(Noam(4, model_dims=64).factor(step)), 6) for step in (0, 3, 15)]
        [0.015625, 0.0625, 0.03125]
    """

    model_dims: Count = 512

    def check(self) -> None:
        super().check()
        require_positive(self, 'warmup_steps', 'model_dims')

    def after_warmup(self, step: jax.Array) -> jax.Array:
        start = jnp.maximum(jnp.asarray(self.warmup_steps, jnp.float32), 1)
        return jax.lax.rsqrt(self.model_dims * jnp.maximum(step + 1, start))
