"""Tasks that replace the train step: one loss, or several with an optimizer each."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.layers import Layer, Linear
from trainer.learner import SGD, AuxiliaryOptimizer, Freeze, Learner
from trainer.mesh import Mesh
from trainer.metrics import Metrics, WeightedScalar
from trainer.program.costs import own_flops
from trainer.program.program import Program
from trainer.symbolic.errors import UserError
from trainer.task import DeviceBatch, ModelCall, Task, TrainStep

SPEC = {'x': jax.ShapeDtypeStruct((4, 3), jnp.float32)}
BATCH = {'x': np.arange(12, dtype=np.float32).reshape(4, 3) / 12}


class Pair(Layer):
    """Two linear layers that can be called apart."""

    left: Linear = Linear(2)
    right: Linear = Linear(2)

    def of_left(self, x: jax.Array) -> jax.Array:
        return self.left(x)

    def of_right(self, x: jax.Array) -> jax.Array:
        return self.right(x)

    def forward(self, x: jax.Array) -> jax.Array:
        return self.left(x) + self.right(x)


class OneLoss(Task):
    """Minimizes the squared sum of both layers.

    Attributes:
        shifted: a random number is added to each feature.
    """

    shifted: bool = False

    def prepared(self, batch: DeviceBatch, key: jax.Array) -> DeviceBatch:
        return {'x': batch['x'] + self.shifted * jax.random.normal(key, batch['x'].shape)}

    def model_inputs(self, batch: DeviceBatch) -> tuple[object, ...]:
        return (batch['x'],)

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        return _mean_square(outputs)


class SameLoss(OneLoss):
    """Writes the default step out."""

    def train_step(self, step: TrainStep) -> Metrics:
        return step.minimize(self.squared)

    def squared(self, call: ModelCall, batch: DeviceBatch) -> Metrics:
        return _mean_square(call(batch['x']))


class TwoLosses(OneLoss):
    """Minimizes a loss of each layer; the second one sees the first layer after its update.

    Attributes:
        broken: the loss of the right layer is not finite.
    """

    broken: bool = False

    def train_step(self, step: TrainStep) -> Metrics:
        left = step.minimize(self.of_left, 'main')
        right = step.minimize(self.of_right, 'right')
        return {'loss': left['loss'], 'right_loss': right['loss']}

    def of_left(self, call: ModelCall, batch: DeviceBatch) -> Metrics:
        return _mean_square(call(batch['x'], method='of_left'))

    def of_right(self, call: ModelCall, batch: DeviceBatch) -> Metrics:
        gap = call(batch['x'], method='of_left') - call(batch['x'], method='of_right')
        return _mean_square(gap / 0.0 if self.broken else gap)


def _mean_square(y: jax.Array) -> Metrics:
    return {'loss': WeightedScalar.of((y**2).sum(-1), jnp.ones(len(y)))}


def learner(**fields: Any) -> Learner:
    right = AuxiliaryOptimizer(['right.*'], learning_rate=0.2, optimizer=SGD())
    return Learner(
        0.1, optimizer=SGD(), clipping=None, auxiliary_optimizers={'right': right}, **fields
    )


def trained(task: Task, steps: int = 2) -> tuple[Any, Any, Metrics]:
    """The first state, the last one, and the metrics of the last step."""
    program = Program(task, Mesh(data=1).make(jax.devices()[:1]), SPEC)
    values, key = program.values(task), program.random_key(0)
    state, metrics = program.init(key, values), Metrics()
    first = jax.device_get(state)
    for _ in range(steps):
        state, metrics = program.train_step(state, program.put(BATCH), key, values)
    return first, jax.device_get(state), jax.device_get(metrics)


@pytest.mark.parametrize('shifted', [False, True])
@pytest.mark.parametrize('microbatches', [1, 2])
def test_a_step_that_is_written_out_has_the_bits_of_the_default_one(
    microbatches: int, shifted: bool
) -> None:
    how = learner(microbatches=microbatches, ema_decay=0.9)
    states = [
        trained(kind(model=Pair(), learner=how.clone(deep=True), shifted=shifted))[1]
        for kind in (OneLoss, SameLoss)
    ]
    jax.tree.map(np.testing.assert_array_equal, *states)


@pytest.mark.pax('BaseTrainProgram', 'stochastic_gradient')
def test_each_loss_updates_the_part_of_its_optimizer_after_the_ones_before() -> None:
    first, last, metrics = trained(TwoLosses(Pair(), learner(ema_decay=0.5)), steps=1)
    x, mean = BATCH['x'], 2 / len(BATCH['x'])
    left, right = (first.params[name]['kernel'] for name in ('left', 'right'))
    new_left = left - 0.1 * mean * x.T @ (x @ left)
    new_right = right - 0.2 * mean * x.T @ (x @ right - x @ new_left)
    np.testing.assert_allclose(last.params['left']['kernel'], new_left, rtol=1e-5)
    np.testing.assert_allclose(last.params['right']['kernel'], new_right, rtol=1e-5)
    assert int(last.step) == 1
    # The average of the first step keeps a tenth of the old parameters.
    averaged = 0.1 * right + 0.9 * new_right
    np.testing.assert_allclose(last.ema_params['right']['kernel'], averaged, rtol=1e-5)
    assert {'gradient_norm/main', 'gradient_norm/right', 'learning_rate/right'} <= set(metrics)
    norms = [metrics[f'gradient_norm/{name}'].value() for name in ('main', 'right')]
    np.testing.assert_allclose(metrics['gradient_norm'].value(), np.hypot(*norms), rtol=1e-5)
    assert metrics['skipped_steps'].value() == 0


class Twice(OneLoss):
    """Minimizes one loss two times.

    Attributes:
        optimizer: of both updates.
        broken: the second loss is not finite.
    """

    optimizer: str | None = None
    broken: bool = False

    def train_step(self, step: TrainStep) -> Metrics:
        metrics = step.minimize(self.squared, self.optimizer)
        step.minimize(self.again, self.optimizer)
        return metrics

    def squared(self, call: ModelCall, batch: DeviceBatch) -> Metrics:
        return _mean_square(call(batch['x']))

    def again(self, call: ModelCall, batch: DeviceBatch) -> Metrics:
        return _mean_square(call(batch['x']) / 0.0 if self.broken else call(batch['x']))


@pytest.mark.parametrize('optimizer', [None, 'main'])
def test_an_average_counts_a_step_with_two_updates_once(optimizer: str | None) -> None:
    how = Learner(0.1, optimizer=SGD(), clipping=None, ema_decay=0.5)
    first, last, metrics = trained(Twice(Pair(), how, optimizer=optimizer), steps=1)
    before, after = (state.params['left']['kernel'] for state in (first, last))
    # The average of the first step keeps a tenth of the old parameters.
    averaged = 0.1 * before + 0.9 * after
    np.testing.assert_allclose(last.ema_params['left']['kernel'], averaged, rtol=1e-5)
    name = optimizer or 'all'
    norms = [metrics[f'gradient_norm/{name}{again}'].value() for again in ('', '_2')]
    assert norms[1] < norms[0]
    np.testing.assert_allclose(metrics['gradient_norm'].value(), np.hypot(*norms), rtol=1e-5)


def test_a_skipped_second_update_leaves_the_average_of_the_first() -> None:
    how = Learner(0.1, optimizer=SGD(), clipping=None, ema_decay=0.5)
    first, last, metrics = trained(Twice(Pair(), how, broken=True), steps=1)
    before, after = (state.params['left']['kernel'] for state in (first, last))
    averaged = 0.1 * before + 0.9 * after
    np.testing.assert_allclose(last.ema_params['left']['kernel'], averaged, rtol=1e-5)
    assert [metrics[f'skipped_steps/all{again}'].value() for again in ('', '_2')] == [0, 1]


def test_an_update_without_finite_gradients_is_skipped_alone() -> None:
    first, last, metrics = trained(TwoLosses(Pair(), learner(), broken=True))
    same = np.testing.assert_array_equal
    jax.tree.map(same, first.params['right'], last.params['right'])
    assert np.any(first.params['left']['kernel'] != last.params['left']['kernel'])
    assert [metrics[f'skipped_steps{name}'].value() for name in ('', '/main', '/right')] == [
        1,
        0,
        1,
    ]


def test_a_frozen_part_is_a_reference() -> None:
    task = SameLoss(Pair(), Learner(0.1, freeze=Freeze(['left.*'])))
    first, last, _ = trained(task)
    jax.tree.map(np.testing.assert_array_equal, first.params['left'], last.params['left'])
    assert np.any(first.params['right']['kernel'] != last.params['right']['kernel'])


def test_the_products_of_all_losses_count() -> None:
    # Left: one product and its gradient. Right: two products, and the gradient of one.
    assert own_flops(TwoLosses(Pair(), learner()), SPEC) == 5 * 2 * 4 * 3 * 2


class NoUpdate(OneLoss):
    def train_step(self, step: TrainStep) -> Metrics:
        return _mean_square(jnp.ones((1, 1)))


class NoLoss(OneLoss):
    def train_step(self, step: TrainStep) -> Metrics:
        return {'other': step.minimize()['loss']}


@pytest.mark.parametrize(
    ('task', 'message'),
    [
        (NoUpdate(Pair(), learner()), r'^task: NoUpdate.train_step updates no parameter'),
        (NoLoss(Pair(), learner()), r"^task: NoLoss.train_step returns other: it needs 'loss'"),
        (
            TwoLosses(Pair(), Learner(0.1)),
            r"^task.learner: no optimizer called 'right' has parameters, only main: name it in",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_step_that_cannot_be_is_refused(task: Task, message: str) -> None:
    with pytest.raises(UserError, match=message):
        trained(task)
