"""The contract of schedules. Use `check_schedule(schedule)` in a test of the schedule."""

import jax
import jax.numpy as jnp
import numpy as np

from trainer.learner import Schedule
from trainer.symbolic.component import bind, numbers

STEPS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 1000, 10_000_000)


def check_schedule(schedule: Schedule) -> None:
    """Everything below."""
    check_factors_are_finite_and_none_is_negative(schedule)
    check_traced_numbers_are_as_good(schedule)
    check_the_warm_up_rises(schedule)


def check_factors_are_finite_and_none_is_negative(schedule: Schedule) -> None:
    for step in STEPS:
        factor = schedule.factor(jnp.int32(step))
        assert (factor.shape, factor.dtype) == ((), jnp.float32)
        assert np.isfinite(factor) and factor >= 0


def check_traced_numbers_are_as_good(schedule: Schedule) -> None:
    """The same values, and other numbers compile nothing."""
    traces = 0

    def factor(step: jax.Array, values: dict[str, float]) -> jax.Array:
        nonlocal traces
        traces += 1
        return bind(schedule, values).factor(step)

    traced, values = jax.jit(factor), numbers(schedule)
    for step in STEPS:
        got = traced(jnp.int32(step), values)
        np.testing.assert_allclose(got, schedule.factor(jnp.int32(step)), rtol=1e-5, atol=1e-7)
    for name, value in values.items():
        traced(jnp.int32(3), values | {name: type(value)(value * 2 + 1)})
    assert traces == 1


def check_the_warm_up_rises(schedule: Schedule) -> None:
    """In its own warm-up a schedule rises from 1 / warmup_steps of its height."""
    warmed = schedule.clone(override={'warmup_steps': 4})
    rise = [float(warmed.factor(jnp.int32(step))) for step in range(4)]
    np.testing.assert_allclose(rise, np.array([0.25, 0.5, 0.75, 1]) * rise[-1], rtol=1e-5)
    assert rise[-1] > 0
