"""Piecewise schedules: steps of a staircase, or other schedules.

Each may have its own warm-up, which multiplies the factors of its pieces.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from trainer.learner.schedules import Schedule
from trainer.symbolic.component import CountList, Number, NumberList, require_not_negative


class PiecewiseConstant(Schedule):
    """A staircase.

    Attributes:
        boundaries: the first step of each value but the first, ascending.
        values: the factors before the first boundary, after it, and so on.

    Example:
        >>> stairs = PiecewiseConstant(boundaries=[2, 4], values=[1.0, 0.5, 0.25])
        >>> [float(stairs.factor(step)) for step in range(6)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    boundaries: CountList
    values: NumberList

    def check(self) -> None:
        super().check()
        _check_boundaries(self.boundaries)
        _check_lengths('values', len(self.values), len(self.boundaries) + 1)

    def after_warmup(self, step: jax.Array) -> jax.Array:
        values = jnp.stack([jnp.asarray(value, jnp.float32) for value in self.values])
        return values[_piece(step, self.boundaries)]


class Piecewise(Schedule):
    """One schedule after another; each counts its steps, warm-up included, from its start.

    Attributes:
        boundaries: the first step of each but the first, ascending.

    Example:
        >>> from trainer.learner.schedules import Constant, LinearSchedule
        >>> joined = Piecewise(
        ...     schedules=[Constant(), LinearSchedule(decay_steps=4)], boundaries=[2]
        ... )
        >>> [float(joined.factor(step)) for step in range(7)]
        [1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    schedules: list[Schedule]
    boundaries: CountList

    def check(self) -> None:
        super().check()
        _check_boundaries(self.boundaries)
        _check_lengths('schedules', len(self.schedules), len(self.boundaries) + 1)

    @property
    def end(self) -> int | None:
        last = self.schedules[-1].end
        return None if last is None else last + sum(self.boundaries[-1:])

    def after_warmup(self, step: jax.Array) -> jax.Array:
        return _joined(self.schedules, self.boundaries, step)


class Cycle(Schedule):
    """Repeats a sequence of schedules: warm restarts (Loshchilov & Hutter 2017).

    Attributes:
        schedules: in order; each counts its steps, warm-up included, from its start.
        steps: number of steps of each schedule.

    Example:
        >>> from trainer.learner.schedules import LinearSchedule
        >>> cycle = Cycle(schedules=[LinearSchedule(decay_steps=2)], steps=[3])
        >>> [float(cycle.factor(step)) for step in range(7)]
        [1.0, 0.5, 0.0, 1.0, 0.5, 0.0, 1.0]
    """

    schedules: list[Schedule]
    steps: CountList

    def check(self) -> None:
        super().check()
        if any(count < 1 for count in self.steps):
            raise ValueError(f'steps must all be at least 1: {list(self.steps)}')
        if not self.steps:
            raise ValueError('schedules and steps must not be empty')
        _check_lengths('schedules', len(self.schedules), len(self.steps))

    def after_warmup(self, step: jax.Array) -> jax.Array:
        ends = [sum(self.steps[: i + 1]) for i in range(len(self.steps))]
        return _joined(self.schedules, ends[:-1], jnp.mod(step, ends[-1]))


class Scaled(Schedule):
    """Another schedule times a number, for use as a piece of a longer one.

    Example:
        >>> from trainer.learner.schedules import Constant
        >>> float(Scaled(schedule=Constant(), scale=0.5).factor(0))
        0.5
    """

    schedule: Schedule
    scale: Number

    def check(self) -> None:
        super().check()
        require_not_negative(self, 'scale')

    @property
    def end(self) -> int | None:
        return self.schedule.end

    def after_warmup(self, step: jax.Array) -> jax.Array:
        return self.scale * self.schedule.factor(step)


def _piece(step: jax.Array, boundaries: Sequence[jax.Array | int]) -> jax.Array:
    passed = [jnp.asarray(step >= boundary, jnp.int32) for boundary in boundaries]
    return sum(passed, start=jnp.zeros((), jnp.int32))


def _joined(
    schedules: Sequence[Schedule], boundaries: Sequence[jax.Array | int], step: jax.Array
) -> jax.Array:
    starts = [0, *boundaries]
    # The factor of a piece before its start is not used, but must be finite.
    factors = [
        schedule.factor(jnp.maximum(step - start, 0))
        for schedule, start in zip(schedules, starts, strict=True)
    ]
    return jnp.stack(factors)[_piece(step, boundaries)]


def _check_boundaries(boundaries: Sequence[int]) -> None:
    if any(late <= early for early, late in zip([0, *boundaries], boundaries, strict=False)):
        raise ValueError(f'boundaries must be positive and ascend: {list(boundaries)}')


def _check_lengths(name: str, count: int, wanted: int) -> None:
    if count != wanted:
        raise ValueError(f'there must be {wanted} {name}, and there are {count}')
