"""Optimizers: the conformance suite, and comparisons with optax."""

import inspect
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from tests.conformance.optimizer_suite import (
    MASK,
    PARAMS,
    UNSCANNED,
    check_optimizer,
    gradients_of,
    updates,
)
from trainer.layers.stack import per_layer
from trainer.learner import (
    SGD,
    Adafactor,
    AdamW,
    AuxiliaryOptimizer,
    Cosine,
    Learner,
    Lion,
    Muon,
    Optax,
    Optimizer,
)
from trainer.metrics import WeightedScalar
from trainer.state import TrainState
from trainer.symbolic.component import bind, numbers

OPTIMIZERS = {
    'adafactor': Adafactor(min_dim_size_to_factor=2),
    'adafactor_momentum': Adafactor(momentum=0.9, factored=False, clipping_threshold=None),
    'adamw': AdamW(weight_decay=None),
    'adamw_clipped': AdamW(weight_decay=None, clip_threshold=1.0, epsilon_root=1e-12),
    'adamw_bfloat16': AdamW(weight_decay=None, mu_dtype='bfloat16'),
    'lion': Lion(),
    'muon': Muon(weight_decay=None),
    'muon_bfloat16': Muon(weight_decay=None, mu_dtype='bfloat16', nesterov=False),
    'lion_bfloat16': Lion(mu_dtype='bfloat16'),
    'sgd': SGD(),
    'nesterov': SGD(momentum=0.9, nesterov=True),
    'adagrad': Optax(name='adagrad'),
    'lars': Optax(name='lars', hyperparameters={'trust_coefficient': 1.0}),
    'lamb': Optax(name='lamb'),
    'rmsprop': Optax(name='rmsprop', hyperparameters={'decay': 0.9}),
}


@pytest.mark.pax('vectorize_on_repeat_prefix', 'scale_update_by_var_norm', 'Adagrad')
@pytest.mark.parametrize('name', OPTIMIZERS)
@pytest.mark.contract
@pytest.mark.fast(7)
def test_optimizers_conform(name: str) -> None:
    check_optimizer(OPTIMIZERS[name])


def of_optax() -> list[str]:
    """The names of all functions of optax and optax.contrib that take a learning rate."""
    modules = (('', optax), ('contrib.', optax.contrib))
    return [
        prefix + name
        for prefix, module in modules
        for name in sorted(vars(module))
        if inspect.isfunction(vars(module)[name])
        and name[0] != '_'
        and 'learning_rate' in inspect.signature(vars(module)[name]).parameters
    ]


REFUSED = {
    'lbfgs': 'computes the loss several times',
    'scale_by_learning_rate': 'part of an optimizer',
    'scale_by_rprop': 'part of an optimizer',
    'contrib.scale_by_madgrad': 'part of an optimizer',
    'contrib.dpsgd': 'gradients of each example',
    'contrib.momo': 'needs the loss',
    'contrib.momo_adam': 'needs the loss',
    'contrib.muon': 'use Muon',
    'contrib.schedule_free': 'needs another optimizer',
    'contrib.sophia': 'function of the loss',
}
FLAT: Any = {'one': {'w': PARAMS['embedding']['table'], 'b': jnp.array([0.5, -1.0, 2.0])}}


def of_flat(params: Any, i: int) -> Any:
    """Gradients that change their signs after some steps."""
    return jax.tree.map(lambda leaf: (leaf - 0.1) * jnp.cos(i), params)


@pytest.mark.contract
@pytest.mark.filterwarnings('ignore:.*is deprecated', 'ignore:Specifying a key')
@pytest.mark.parametrize('name', of_optax())
@pytest.mark.fast(3)
def test_each_optimizer_of_optax_trains_as_it_does_alone_or_is_refused(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(ValueError, match=f'{name} .*{REFUSED[name]}'):
            Optax(name=name)
        return
    learner = Learner(0.05, optimizer=Optax(name=name), clipping=None, skip=None)
    mask: Any = jax.tree.map(lambda _: True, FLAT)
    one = WeightedScalar(jnp.ones(()), jnp.ones(()))

    @jax.jit
    def step(state: TrainState, i: int, values: Any) -> TrainState:
        gradients = of_flat(state.params, i)
        return bind(learner, values).update(state, gradients, one, mask).state({})

    made = operator.attrgetter(name)(optax)(learning_rate=0.05)

    @jax.jit
    def alone(params: Any, memory: Any, i: int) -> Any:
        updates, memory = made.update(of_flat(params, i), memory, params)
        return optax.apply_updates(params, updates), memory

    first = learner.init(FLAT, mask), learner.init_ema(FLAT)
    state = TrainState(jnp.zeros((), jnp.int32), FLAT, {}, *first)
    wanted: Any = FLAT
    memory = made.init(wanted)
    for i in range(5):
        state = step(state, i, numbers(learner))
        wanted, memory = alone(wanted, memory, i)
    assert_close(state.params, wanted)
    assert not np.allclose(state.params['one']['w'], FLAT['one']['w'], rtol=1e-7, atol=0)
    if 'schedule_free' in name:
        of: Any = optax.contrib
        wanted = of.schedule_free_eval_params(memory, wanted)
        assert not np.allclose(state.params['one']['w'], wanted['one']['w'])
    assert_close(state.variables['params'], wanted)


def assert_close(got: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, wanted)


class Growing(Optimizer):
    """Keeps its rate in its state."""

    def direction(self, learning_rate: jax.Array, decay_mask: Any) -> Any:
        def update(updates: Any, state: Any, params: Any = None) -> Any:
            return jax.tree.map(lambda u: -state * u, updates), 2 * state

        return optax.GradientTransformation(lambda _: jnp.asarray(learning_rate), update)


def test_an_optimizer_with_the_rate_in_its_state_starts_from_its_own() -> None:
    schedule = Cosine(warmup_steps=4, decay_steps=10, final_factor=0.1)
    auxiliary = AuxiliaryOptimizer(['one.b'], 0.3, optimizer=Growing(weight_decay=None))
    learner = Learner(
        0.2, schedule, Growing(weight_decay=None), auxiliary_optimizers={'b': auxiliary}
    )
    states = learner.init(FLAT, jax.tree.map(lambda _: True, FLAT))
    rates = {name: float(jax.tree.leaves(state)[0]) for name, state in states.items()}
    assert rates == pytest.approx({'main': 0.2 * 0.25, 'b': 0.3})


@pytest.mark.filterwarnings('ignore:Specifying a key')
@pytest.mark.parametrize(
    'name', ['noisy_sgd', 'contrib.prodigy', 'contrib.dog', 'contrib.schedule_free_sgd']
)
@pytest.mark.fast(2)
def test_an_optimizer_of_all_parameters_sees_a_scanned_run_as_one(name: str) -> None:
    gradients = gradients_of(PARAMS)
    made = operator.attrgetter(name)(optax)(learning_rate=0.1)
    wanted = made.update(gradients, made.init(PARAMS), PARAMS)[0]
    assert_close(updates(Optax(name=name), PARAMS, gradients, MASK), wanted)


def test_schedule_free_refuses_another_average_and_decay_outside() -> None:
    made = Optax(name='contrib.schedule_free_sgd')
    with pytest.raises(ValueError, match='an average of its own'):
        Learner(0.1, optimizer=made, ema_decay=0.9)
    with pytest.raises(ValueError, match=r"set hyperparameters\['weight_decay'\]"):
        Optax(name=made.name, weight_decay=0.1)
    with pytest.raises(ValueError, match='must be above 0'):
        Optax(name=made.name, hyperparameters={'b1': 0.0})


def third(made: optax.GradientTransformation, params: Any, gradients: Any) -> Any:
    """The third updates, with gradients that grow and then turn, always from `params`."""

    @jax.jit
    def of(params: Any, gradients: Any) -> Any:
        state: Any = made.init(params)
        # The last one is between the momentum of a fast and of a slow decay, as Lion's two are.
        for scale in (1.0, 2.0, -0.5):
            scaled = jax.tree.map(lambda g, scale=scale: g * scale, gradients)
            new, state = made.update(scaled, state, params)
        return new

    return of(params, gradients)


@pytest.mark.pax('l1_regularizer_weight', '`Adam`', 'Lion', 'ShardedSgd')
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


@pytest.mark.pax('OptaxOptimizer')
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


@pytest.mark.pax('l1_regularizer_weight')
def test_l1_adds_the_sign() -> None:
    made: Any = SGD(l1_regularizer_weight=0.5).make(jnp.float32(1.0), MASK)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    got, _ = made.update(zeros, made.init(PARAMS), PARAMS)
    np.testing.assert_allclose(
        got['embedding']['table'], -0.5 * np.sign(PARAMS['embedding']['table'])
    )


@pytest.mark.pax('skip_lp_1d_vectors')
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


@pytest.mark.pax('Adafactor')
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
