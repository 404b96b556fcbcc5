"""The contract of optimizers. Use `check_optimizer(optimizer)` in a test of the optimizer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.layers.parameters import MatrixAxes
from trainer.layers.stack import per_layer
from trainer.learner import Optimizer, Schedule
from trainer.symbolic.component import bind, numbers

_ROOT = np.random.default_rng(0)


def _drawn(*shape: int) -> jax.Array:
    # Layers of one run differ in scale: what mixes them up is seen.
    values = _ROOT.normal(size=shape) * np.arange(1, shape[0] + 1).reshape(
        -1, *[1] * len(shape[1:])
    )
    return jnp.asarray(values, jnp.float32)


PARAMS: Any = {
    'embedding': {'table': _drawn(8, 4)},
    'stack': {'layers_0x3': {'kernel': _drawn(3, 4, 6), 'scale': _drawn(3, 4)}},
}
MASK: Any = {
    'embedding': {'table': True},
    'stack': {'layers_0x3': {'kernel': True, 'scale': False}},
}
UNSCANNED: Any = {
    'embedding': MASK['embedding'],
    'stack': {f'layers_{i}': {'kernel': True, 'scale': False} for i in range(3)},
}

MATRICES: Any = {
    'embedding': {'table': None},
    'stack': {'layers_0x3': {'kernel': MatrixAxes((-2,), (-1,)), 'scale': None}},
}
UNSCANNED_MATRICES: Any = {
    'embedding': MATRICES['embedding'],
    'stack': {f'layers_{i}': MATRICES['stack']['layers_0x3'] for i in range(3)},
}


def gradients_of(params: Any) -> Any:
    """Gradients of a quadratic, steeper along some parameters than along others."""
    return jax.tree.map(lambda leaf, steep: steep * (leaf - 0.1), params, _STEEP)


def loss(params: Any) -> float:
    """The quadratic."""
    each = jax.tree.map(lambda leaf, steep: steep * jnp.sum((leaf - 0.1) ** 2) / 2, params, _STEEP)
    return float(sum(jax.tree.leaves(each)))


_STEEP = jax.tree.unflatten(jax.tree.structure(PARAMS), [1.0, 2.0, 3.0])


class Steps:
    """Steps of an optimizer down the quadratic, compiled once with traced numbers."""

    def __init__(self, optimizer: Optimizer):
        self.traces = 0

        @jax.jit
        def step(params: Any, state: Any, rate: Any, values: Any) -> Any:
            self.traces += 1
            made = bind(optimizer, values).make(rate, MASK, matrices=MATRICES)
            updates, state = made.update(gradients_of(params), state, params)
            return jax.tree.map(jnp.add, params, updates), state

        self._step, self.values = step, numbers(optimizer)
        made = optimizer.make(jnp.zeros(()), MASK, matrices=MATRICES)
        self.state = jax.jit(made.init)(PARAMS)

    def run(
        self, params: Any, state: Any, count: int, rate: float = 0.01, **values: float
    ) -> tuple[Any, Any]:
        for _ in range(count):
            params, state = self._step(params, state, rate, self.values | values)
        return params, state


def updates(
    optimizer: Optimizer, params: Any, gradients: Any, mask: Any, matrices: Any = MATRICES
) -> Any:
    """The first updates of an optimizer."""

    @jax.jit
    def first(params: Any, gradients: Any) -> Any:
        made = optimizer.make(jnp.float32(0.1), mask, matrices=matrices)
        return made.update(gradients, made.init(params), params)[0]

    return first(params, gradients)


def check_optimizer(optimizer: Optimizer) -> None:
    """Everything below. Its weights of regularizers must be None."""
    steps = Steps(optimizer)
    check_goes_down(steps)
    check_no_rate_is_no_change(steps)
    check_state_is_all_there_is(steps)
    check_other_numbers_compile_nothing(steps)
    check_without_gradients_only_weights_decay(optimizer)
    check_scanned_layers_are_layers(optimizer)


def check_goes_down(steps: Steps) -> None:
    params, _ = steps.run(PARAMS, steps.state, 40, rate=0.02)
    assert loss(params) < 0.95 * loss(PARAMS)


def check_no_rate_is_no_change(steps: Steps) -> None:
    params, _ = steps.run(PARAMS, steps.state, 2, rate=0.0)
    jax.tree.map(np.testing.assert_array_equal, params, PARAMS)


def check_state_is_all_there_is(steps: Steps) -> None:
    """A run that goes on from copies of all arrays goes on as it would have."""
    whole = steps.run(PARAMS, steps.state, 4)
    half = steps.run(PARAMS, steps.state, 2)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(half[1]))
    params, state = jax.tree.map(lambda leaf: jnp.asarray(np.array(leaf)), half)
    again = steps.run(params, state, 2)
    jax.tree.map(np.testing.assert_array_equal, again, whole)


def check_other_numbers_compile_nothing(steps: Steps) -> None:
    one, _ = steps.run(PARAMS, steps.state, 2)
    for name, value in steps.values.items():
        steps.run(PARAMS, steps.state, 1, **{name: value * 0.9})
    other, _ = steps.run(PARAMS, steps.state, 2, rate=0.02)
    assert steps.traces == 1
    assert not np.array_equal(one['embedding']['table'], other['embedding']['table'])


def check_without_gradients_only_weights_decay(optimizer: Optimizer) -> None:
    """And of those only the ones that the mask says."""
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    got = updates(optimizer.clone(override={'weight_decay': 0.5}), PARAMS, zeros, MASK)
    wanted = jax.tree.map(lambda p, applies: -0.1 * 0.5 * p * applies, PARAMS, MASK)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, wanted)


def check_scanned_layers_are_layers(optimizer: Optimizer) -> None:
    """A scanned stack must get the updates of an unrolled one."""
    gradients = gradients_of(PARAMS)
    together = updates(optimizer, PARAMS, gradients, MASK)
    alone = updates(
        optimizer, per_layer(PARAMS), per_layer(gradients), UNSCANNED, UNSCANNED_MATRICES
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        per_layer(together),
        alone,
    )


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
