"""Optimizers: the conformance suite, and comparisons with optax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conformance.optimizer_suite import (
    MASK,
    PARAMS,
    UNSCANNED,
    check_optimizer,
    check_scanned_layers_are_layers,
    gradients_of,
    updates,
)
from trainer.layers.stack import per_layer
from trainer.learner import SGD, Adafactor, AdamW, Lion, Optax, Optimizer
from trainer.symbolic.component import bind, numbers

OPTIMIZERS = {
    'adafactor': Adafactor(min_dim_size_to_factor=2),
    'adafactor_momentum': Adafactor(momentum=0.9, factored=False, clipping_threshold=None),
    'adamw': AdamW(weight_decay=None),
    'adamw_clipped': AdamW(weight_decay=None, clip_threshold=1.0, epsilon_root=1e-12),
    'adamw_bfloat16': AdamW(weight_decay=None, mu_dtype='bfloat16'),
    'lion': Lion(),
    'lion_bfloat16': Lion(mu_dtype='bfloat16'),
    'sgd': SGD(),
    'nesterov': SGD(momentum=0.9, nesterov=True),
    'adagrad': Optax(name='adagrad'),
    'lars': Optax(name='lars', hyperparameters={'trust_coefficient': 1.0}),
    'lamb': Optax(name='lamb'),
    'rmsprop': Optax(name='rmsprop', hyperparameters={'decay': 0.9}),
}


@pytest.mark.pax('vectorize_on_repeat_prefix', 'scale_update_by_var_norm', 'skip_lp_1d_vectors')
@pytest.mark.pax('`Adam`', 'Lion', 'Adagrad')
@pytest.mark.parametrize('name', OPTIMIZERS)
@pytest.mark.contract
@pytest.mark.fast(7)
def test_optimizers_conform(name: str) -> None:
    check_optimizer(OPTIMIZERS[name])


@pytest.mark.pax('DistributedShampoo')
def test_an_optimizer_of_matrices_sees_those_of_scanned_layers() -> None:
    # It treats arrays of three dimensions differently.
    check_scanned_layers_are_layers(Optax(name='contrib.muon', options={'ns_steps': 2}))


def third(made: optax.GradientTransformation, params: Any, gradients: Any) -> Any:
    """The third updates, with growing gradients, always from `params`."""

    @jax.jit
    def of(params: Any, gradients: Any) -> Any:
        state: Any = made.init(params)
        for i in range(3):
            grown = jax.tree.map(lambda g, i=i: g * (1 + i), gradients)
            new, state = made.update(grown, state, params)
        return new

    return of(params, gradients)


@pytest.mark.pax('l1_regularizer_weight')
@pytest.mark.parametrize(
    ('ours', 'theirs'),
    [
        (
            Adafactor(min_dim_size_to_factor=2, decay_rate=0.7, momentum=0.8),
            optax.adafactor(0.1, 2, 0.7, momentum=0.8),
        ),
        (Adafactor(clipping_threshold=None), optax.adafactor(0.1, clipping_threshold=None)),
        (
            Adafactor(factored=False, multiply_by_parameter_scale=False, epsilon=1e-8),
            optax.adafactor(0.1, factored=False, multiply_by_parameter_scale=False, eps=1e-8),
        ),
        (Lion(b1=0.8, weight_decay=0.3), optax.lion(0.1, 0.8, weight_decay=0.3, mask=UNSCANNED)),
        (
            AdamW(epsilon_root=1e-3, mu_dtype='bfloat16', weight_decay=None),
            optax.adam(0.1, 0.9, 0.95, eps_root=1e-3, mu_dtype='bfloat16'),
        ),
        (
            AdamW(clip_threshold=0.5, weight_decay=None),
            optax.chain(
                optax.scale_by_adam(0.9, 0.95), optax.clip_by_block_rms(0.5), optax.scale(-0.1)
            ),
        ),
        (SGD(momentum=0.9, nesterov=True), optax.sgd(0.1, 0.9, nesterov=True)),
        (
            SGD(l2_regularizer_weight=0.3),
            optax.chain(optax.add_decayed_weights(0.3, UNSCANNED), optax.sgd(0.1)),
        ),
        (
            AdamW(l2_regularizer_weight=0.3, weight_decay=None),
            optax.chain(optax.add_decayed_weights(0.3, UNSCANNED), optax.adam(0.1, 0.9, 0.95)),
        ),
    ],
    ids=[
        'adafactor',
        'unclipped',
        'unfactored',
        'lion',
        'adam',
        'clipped',
        'nesterov',
        'l2',
        'adam_l2',
    ],
)
def test_optimizers_equal_those_of_optax(
    ours: Optimizer, theirs: optax.GradientTransformation
) -> None:
    gradients = gradients_of(PARAMS)
    got = third(ours.make(jnp.float32(0.1), MASK), PARAMS, gradients)
    wanted = third(theirs, per_layer(PARAMS), per_layer(gradients))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), per_layer(got), wanted
    )


def test_weight_decay_on_all_spares_nothing() -> None:
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    made = AdamW(weight_decay=0.5, weight_decay_on_all=True).make(jnp.float32(0.1), MASK)
    got, _ = made.update(zeros, made.init(PARAMS), PARAMS)
    wanted = jax.tree.map(lambda param: -0.1 * 0.5 * param, PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, wanted)


def test_regularizers_are_numbers() -> None:
    made = SGD(l2_regularizer_weight=0.5)

    @jax.jit
    def update(values: Any) -> Any:
        optimizer = bind(made, values).make(jnp.float32(1.0), MASK)
        return optimizer.update(gradients_of(PARAMS), optimizer.init(PARAMS), PARAMS)[0]

    less, more = update(numbers(made)), update({'l2_regularizer_weight': 0.75})
    np.testing.assert_allclose(
        less['embedding']['table'] - more['embedding']['table'],
        0.25 * PARAMS['embedding']['table'],
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    'optimizer',
    [
        Optax(name='adafactor', hyperparameters={'weight_decay_rate': 0.5}),
        Optax(name='lamb', hyperparameters={'weight_decay': 0.5}),
    ],
    ids=['adafactor', 'lamb'],
)
def test_weight_decay_of_optax_follows_its_mask(optimizer: Optax) -> None:
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    got = updates(optimizer, PARAMS, zeros, MASK)
    layers = got['stack']['layers_0x3']
    assert layers['kernel'].all() and not layers['scale'].any()


def test_l1_adds_the_sign() -> None:
    made: Any = SGD(l1_regularizer_weight=0.5).make(jnp.float32(1.0), MASK)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    got, _ = made.update(zeros, made.init(PARAMS), PARAMS)
    np.testing.assert_allclose(
        got['embedding']['table'], -0.5 * np.sign(PARAMS['embedding']['table'])
    )


def test_regularizers_can_exempt_vectors() -> None:
    mask = jax.tree.map(lambda _: True, MASK)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    for spared in (False, True):
        optimizer = SGD(l2_regularizer_weight=0.5, skip_lp_1d_vectors=spared)
        made: Any = optimizer.make(jnp.float32(1.0), mask)
        got, _ = made.update(zeros, made.init(PARAMS), PARAMS)
        layers = got['stack']['layers_0x3']
        assert layers['kernel'].all()
        # In scanned layers it is stored as a matrix, but is a vector in each layer.
        assert layers['scale'].any() != spared


def test_factored_moments_take_little_memory() -> None:
    params = {'kernel': jnp.ones((256, 128)), 'stack': {'layers_0x8': jnp.ones((8, 256, 128))}}
    mask = jax.tree.map(lambda _: True, params)
    state = Adafactor().make(jnp.zeros(()), mask).init(params)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) < 0.02 * 9 * 256 * 128


@pytest.mark.parametrize(
    'make',
    [
        lambda: AdamW(l2_regularizer_weight=0.1),
        lambda: SGD(l1_regularizer_weight=0.1, l2_regularizer_weight=0.1),
        lambda: SGD(l1_regularizer_weight=-0.1),
        lambda: SGD(nesterov=True),
        lambda: AdamW(clip_threshold=0.0),
        lambda: AdamW(epsilon_root=-1.0),
        lambda: Lion(b2=1.0),
        lambda: Adafactor(decay_rate=0.0),
        lambda: Adafactor(momentum=1.0),
    ],
)
def test_impossible_values_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match='must'):
        make()
