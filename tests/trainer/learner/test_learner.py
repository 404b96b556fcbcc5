from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trainer.learner import (
    SGD,
    AdamW,
    Constant,
    Cosine,
    GlobalNorm,
    Learner,
    LinearSchedule,
    Optax,
    Optimizer,
)
from trainer.metrics import WeightedScalar
from trainer.state import TrainState
from trainer.symbolic.component import bind, key, numbers

PARAMS = {'w': jnp.array([1.0, -2.0, 3.0]), 'b': jnp.array([0.5])}
GRADS = {'w': jnp.array([0.3, 0.1, -0.2]), 'b': jnp.array([1.0])}
LOSS = WeightedScalar(jnp.ones(()), jnp.ones(()))
MASK = {'w': True, 'b': False}


def steps(learner: Learner, count: int = 3) -> Any:
    """Parameters after some steps with constant gradients, compiled with traced numbers."""

    @jax.jit
    def step(state: TrainState, values: Any) -> TrainState:
        return bind(learner, values).update(state, GRADS, LOSS, MASK).state({})

    state = TrainState(
        jnp.zeros((), jnp.int32), PARAMS, {}, learner.init(PARAMS, MASK), learner.init_ema(PARAMS)
    )
    for _ in range(count):
        state = step(state, numbers(learner))
    return state.params


def optax_steps(optimizer: optax.GradientTransformation, count: int = 3) -> Any:
    params: Any = PARAMS
    state = optimizer.init(PARAMS)
    for _ in range(count):
        updates, state = optimizer.update(GRADS, state, params)
        params = optax.apply_updates(params, updates)
    return params


def unclipped(optimizer: Optimizer, **fields: Any) -> Learner:
    return Learner(0.1, optimizer=optimizer, clipping=None, **fields)


@pytest.mark.pax('`optimizer`', 'ShardedSgd', 'OptaxOptimizer')
@pytest.mark.parametrize(
    ('ours', 'theirs'),
    [
        (
            AdamW(b1=0.8, b2=0.99, weight_decay=0.2),
            optax.adamw(0.1, 0.8, 0.99, weight_decay=0.2, mask=MASK),
        ),
        (AdamW(weight_decay=None), optax.adam(0.1, 0.9, 0.95)),
        (SGD(), optax.sgd(0.1)),
        (SGD(momentum=0.9), optax.sgd(0.1, momentum=0.9)),
        (
            Optax(name='lion', hyperparameters={'b1': 0.8, 'weight_decay': 0.0}),
            optax.lion(0.1, 0.8, weight_decay=0.0),
        ),
    ],
    ids=['adamw', 'adam', 'sgd', 'momentum', 'lion'],
)
@pytest.mark.fast(5)
def test_optimizers_equal_those_of_optax(
    ours: Optimizer, theirs: optax.GradientTransformation
) -> None:
    got, wanted = steps(unclipped(ours)), optax_steps(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, wanted)


@pytest.mark.pax('OptaxOptimizer')
@pytest.mark.parametrize(
    'name',
    ['adafactor', 'adagrad', 'adamax', 'lamb', 'lion', 'nadam', 'radam', 'rmsprop', 'yogi'],
)
@pytest.mark.contract
def test_any_optimizer_of_optax_takes_traced_learning_rates(name: str) -> None:
    got = steps(unclipped(Optax(name=name)))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(got))
    assert not np.allclose(got['w'], PARAMS['w'])


def test_hyperparameters_of_optax_are_numbers() -> None:
    optimizer = Optax(name='lion', hyperparameters={'b1': 0.8})
    assert numbers(optimizer) == {'hyperparameters.b1': 0.8}
    assert key(optimizer) == key(Optax(name='lion', hyperparameters={'b1': 0.7}))
    assert key(optimizer) != key(Optax(name='lion', hyperparameters={'b2': 0.8}))


@pytest.mark.parametrize(
    ('name', 'arguments', 'message'),
    [
        ('lionn', {}, "no optimizer 'lionn'"),
        ('apply_updates', {}, 'that takes a learning_rate'),
        ('_src.alias.lion', {}, 'not the name of an optimizer'),
        ('lion', {'b7': 1.0}, "no argument 'b7'"),
        ('lion', {'learning_rate': 1.0}, 'is a field of the learner'),
    ],
)
def test_names_missing_in_optax_are_refused(name: str, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Optax(name=name, hyperparameters=arguments)


@pytest.mark.pax('decoupled_weight_decay')
def test_weight_decay_follows_its_mask() -> None:
    plain, decayed = steps(unclipped(SGD())), steps(unclipped(SGD(weight_decay=0.5)))
    np.testing.assert_array_equal(plain['b'], decayed['b'])
    assert (jnp.abs(decayed['w']) < jnp.abs(plain['w'])).all()


@pytest.mark.pax('clip_gradient_norm_to_value')
def test_gradients_are_clipped_by_their_global_norm() -> None:
    norm = float(optax.tree.norm(GRADS))
    learner = Learner(1.0, optimizer=SGD(), clipping=GlobalNorm(norm / 2))
    np.testing.assert_allclose(steps(learner, 1)['b'], PARAMS['b'] - 0.5, rtol=1e-6)
    loose = Learner(1.0, optimizer=SGD(), clipping=GlobalNorm(norm * 2))
    np.testing.assert_allclose(steps(loose, 1)['b'], PARAMS['b'] - 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ('schedule', 'wanted'),
    [
        (Constant(warmup_steps=2), [0.5, 1, 1, 1, 1, 1, 1]),
        (LinearSchedule(warmup_steps=2, decay_steps=6), [0.5, 1, 1, 0.75, 0.5, 0.25, 0]),
        (LinearSchedule(decay_steps=4, final_factor=0.2), [1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]),
        (Cosine(decay_steps=4), [1, 0.853553, 0.5, 0.146447, 0, 0, 0]),
    ],
    ids=['constant', 'linear', 'final', 'cosine'],
)
def test_schedules(schedule: Any, wanted: list[float]) -> None:
    traced = jax.jit(lambda step, values: bind(schedule, values).factor(step))
    got = [float(traced(step, numbers(schedule))) for step in range(len(wanted))]
    np.testing.assert_allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize(
    'make',
    [
        lambda: Learner(-1.0),
        lambda: Learner(1.0, microbatches=0),
        lambda: Learner(1.0, clipping=GlobalNorm(0.0)),
        lambda: AdamW(b1=1.0),
        lambda: AdamW(weight_decay=-0.1),
        lambda: Cosine(warmup_steps=5, decay_steps=5),
        lambda: Constant(warmup_steps=-1),
    ],
)
def test_impossible_values_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match='must'):
        make()
