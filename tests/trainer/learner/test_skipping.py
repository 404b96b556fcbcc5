"""Moments of every optimizer stay as they are in a skipped step, and take no second copy."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trainer.layers.parameters import MatrixAxes
from trainer.learner import Muon, Optax
from trainer.learner.skipping import unless_skipped

RATE, MASK = jnp.asarray(0.1), {'matrix': True, 'vector': False}
MATRICES = {'matrix': MatrixAxes((-2,), (-1,)), 'vector': None}
OPTIMIZERS = {
    'adamw': optax.adamw(0.1),
    'chain of several counters': optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(),
        optax.scale_by_schedule(optax.cosine_decay_schedule(0.1, 10)),
    ),
    'constant moment': Optax(name='optimistic_gradient_descent').make(RATE, MASK),
    'factored moments': optax.adafactor(0.1),
    'momentum': optax.sgd(0.1, momentum=0.9),
    'loop in the update': Muon().make(RATE, MASK, matrices=MATRICES),
    'no moments': optax.sgd(0.1),
    'gradients as moments': optax.GradientTransformation(
        lambda params: params, lambda updates, _, params=None: (updates, updates)
    ),
    'moments of another dtype': optax.GradientTransformation(
        lambda params: params,
        lambda updates, _, params=None: (
            jax.tree.map(
                lambda leaf: (leaf * leaf).astype(jnp.float32),
                low := jax.tree.map(lambda leaf: 2 * leaf.astype(jnp.bfloat16), updates),
            ),
            low,
        ),
    ),
    'one moment twice': optax.GradientTransformation(
        lambda params: (params, jax.tree.map(jnp.zeros_like, params)),
        lambda updates, _, params=None: (updates, (moved := _doubled(updates), moved)),
    ),
}


def _doubled(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: 2 * leaf, tree)


@pytest.mark.parametrize('name', OPTIMIZERS)
@pytest.mark.contract
def test_a_skipped_step_keeps_all_moments_and_another_one_changes_nothing(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    params = {'matrix': jnp.ones((8, 8)), 'vector': jnp.arange(3.0)}
    gradients = jax.tree.map(lambda leaf: 0.25 * leaf + 0.5, params)
    state = optimizer.init(params)

    def update(is_valid: Any) -> Any:
        return unless_skipped(optimizer.update, gradients, state, params, is_valid)

    done, skipped = (jax.jit(update)(jnp.array(is_valid)) for is_valid in (True, False))
    alone = jax.jit(optimizer.update)(gradients, state, params)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), done, alone)
    jax.tree.map(np.testing.assert_array_equal, skipped[1], state)


def test_moments_take_no_second_copy() -> None:
    params = jnp.ones((64, 64))
    optimizer = optax.adam(0.1)

    def step(params: Any, state: Any, gradients: Any, skips: bool) -> Any:
        given, is_valid = (gradients, state, params), jnp.isfinite(jnp.sum(gradients))
        updates, new = unless_skipped(optimizer.update, *given, is_valid)
        if not skips:
            updates, new = optimizer.update(*given)
        return jnp.where(is_valid, params + updates, params), new

    jitted = jax.jit(step, static_argnums=3, donate_argnums=(0, 1))
    given = params, optimizer.init(params), params
    compiled: Any = [jitted.lower(*given, skips).compile() for skips in (True, False)]
    with_skips, without = (each.memory_analysis().temp_size_in_bytes for each in compiled)
    assert with_skips - without < params.nbytes
