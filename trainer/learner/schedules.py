"""Learning-rate schedules: what the learning rate is multiplied by at each step.

Lengths are numbers, so trials with other lengths share one compiled program; that is why these
are written in `jnp` (optax's own schedules branch on their lengths in Python).
"""

import jax
import jax.numpy as jnp

from trainer.component import Component, Count, Number


class Schedule(Component):
    """A factor by step; constant after a linear warm-up, unless a subclass says otherwise.

    Attributes:
        warmup_steps: steps over which the factor rises linearly; it is 1 / warmup_steps at the
            first step. 0 for no warm-up.
    """

    warmup_steps: Count = 0

    def check(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f'warmup_steps must not be negative: {self.warmup_steps}')

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
            of training, so that it is usually the number of training steps.
        final_factor: what is left of the learning rate then.
    """

    decay_steps: Count
    final_factor: Number = 0.0

    def check(self) -> None:
        super().check()
        if self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f'decay_steps ({self.decay_steps}) must be above warmup_steps ({self.warmup_steps})'
            )

    def after_warmup(self, step: jax.Array) -> jax.Array:
        length = jnp.maximum(self.decay_steps - self.warmup_steps, 1)
        done = jnp.clip((step - self.warmup_steps) / length, 0.0, 1.0)
        return self.final_factor + (1 - self.final_factor) * self.remaining(done)

    def remaining(self, done: jax.Array) -> jax.Array:
        """From 1 where `done` is 0 to 0 where it is 1."""
        raise NotImplementedError(type(self).__name__)


class Linear(Decay):
    """A straight line.

    Example:
        >>> [float(Linear(decay_steps=4).factor(step)) for step in (0, 1, 4, 9)]
        [1.0, 0.75, 0.0, 0.0]
    """

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
