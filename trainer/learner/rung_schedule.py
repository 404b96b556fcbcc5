from typing import Literal

import jax
import jax.numpy as jnp

from trainer.learner.schedules import Schedule
from trainer.symbolic.component import Count, CountList, Number, require_not_negative, require_share
from trainer.symbolic.usual_values import UsualValue


class DecayAtRungs(Schedule):
    """Decays before each rung, where training may end or pause, and continues at 1 after it.

    So a measurement at a rung equals that of a training run that ends there. Such measurements
    predict the end better than those of a schedule that has hardly decayed. Up to the first rung
    it is `LinearSchedule` or `Cosine` with `decay_steps` there, and `hold_steps` where
    `decay_share` is below 1.

    Attributes:
        ends: the rungs in completed steps, ascending. The last is the end of training: the factor
            stays at `final_factor` from there on.
        decay_share: share of the steps between the (re-)warm-up and the rung with a decay. 1 decays
            all the way; 0.2 is warm-up, stable, decay.
        final_factor: the factor at each rung. As with other decays it is reached at the step of
            the rung, the first step after it; the step before has slightly more.
        shape: a straight line, or half a cosine.
        rewarm_steps: steps after each rung but the last in which the factor rises linearly from
            `final_factor` to 1. 0 continues at 1.

    Example:
        >>> schedule = DecayAtRungs(ends=[4, 8], decay_share=0.5)
        >>> [float(schedule.factor(step)) for step in range(10)]
        [1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0]
    """

    ends: CountList
    decay_share: Number = 1.0
    final_factor: Number = 0.0
    shape: Literal['linear', 'cosine'] = 'linear'
    rewarm_steps: Count = 0

    usual = {
        'decay_share': UsualValue(0.2, 0.1, 0.3, 'Hägele et al. 2024; 0.1: Hu et al. 2024'),
        'final_factor': UsualValue(0.0, 0.0, 0.1, 'Hägele et al. 2024, Bergsma et al. 2025'),
    }

    def check(self) -> None:
        super().check()
        if not self.ends:
            raise ValueError('ends must have at least one step, the end of training')
        require_not_negative(self, 'rewarm_steps')
        if self.ends[0] <= self.warmup_steps:
            raise ValueError(
                f'ends ({list(self.ends)}) must be above warmup_steps ({self.warmup_steps})'
            )
        if any(b - a <= self.rewarm_steps for a, b in zip(self.ends, self.ends[1:], strict=False)):
            raise ValueError(
                f'ends must ascend, each by more than rewarm_steps ({self.rewarm_steps}): '
                f'{list(self.ends)}'
            )
        if not 0 < self.decay_share <= 1:
            raise ValueError(f'decay_share must be above 0 and at most 1: {self.decay_share}')
        require_share(self, 'final_factor')

    @property
    def end(self) -> int | None:
        return self.ends[-1]

    def after_warmup(self, step: jax.Array) -> jax.Array:
        ends = jnp.stack([jnp.asarray(end, jnp.float32) for end in self.ends])
        number = jnp.searchsorted(ends[:-1], step, side='right')
        begun = jnp.concatenate([jnp.zeros(1), ends[:-1]])[number]
        end = ends[number]
        warm = jnp.where(number == 0, self.warmup_steps, begun + self.rewarm_steps)
        decay_steps = jnp.maximum(self.decay_share * (end - warm), 1e-6)
        done = jnp.clip((step - (end - decay_steps)) / decay_steps, 0.0, 1.0)
        remaining = 1 - done if self.shape == 'linear' else 0.5 * (1 + jnp.cos(jnp.pi * done))
        risen = jnp.clip((step + 1 - begun) / jnp.maximum(self.rewarm_steps, 1), 0.0, 1.0)
        # One of the two factors is 1: the decay starts after the rise.
        height = remaining * jnp.where(number == 0, 1.0, risen)
        return self.final_factor + (1 - self.final_factor) * height
