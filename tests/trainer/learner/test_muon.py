"""Muon: the matrices of a model, and updates against NumPy."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance.optimizer_suite import MASK, MATRICES, PARAMS, updates
from tests.factories.tiny import VOCAB, CountingInput
from trainer import state as state_lib
from trainer.experiment import Experiment
from trainer.layers import (
    Attention,
    Embedding,
    Experts,
    FeedForward,
    GatedFeedForward,
    Linear,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.layers.parameters import MatrixAxes
from trainer.learner import AdamW, Learner, Muon, Optax, WidthScaling
from trainer.learner.optimizers import Rate
from trainer.learner.paths import leaves, names
from trainer.program.step_functions import abstract_params, width_factors
from trainer.symbolic.errors import UserError
from trainer.tasks import LanguageModelTask

RNG = np.random.default_rng(0)
COEFFICIENTS = 3.4445, -4.7750, 2.0315
QUERY = MatrixAxes((-3,), (-2, -1), heads=(-2,))
OUTPUT = MatrixAxes((-3, -2), (-1,), heads=(-3,))


def orthogonalized(x: np.ndarray) -> np.ndarray:
    """Five steps of the quintic iteration of Newton and Schulz, on the singular values alone."""
    left, values, right = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    values /= np.linalg.norm(values)
    a, b, c = COEFFICIENTS
    for _ in range(5):
        values = a * values + b * values**3 + c * values**5
    return np.asarray((left * values) @ right)


def by_numpy(gradients: list[np.ndarray], momentum: float = 0.95) -> np.ndarray:
    """The last update of a matrix [inputs, outputs], with the learning rate 0.1."""
    mean = np.zeros(gradients[0].shape)
    for gradient in gradients:
        mean = momentum * mean + (1 - momentum) * gradient
    steps = len(gradients)
    ahead = momentum * mean / (1 - momentum ** (steps + 1))
    ahead += (1 - momentum) * gradients[-1] / (1 - momentum**steps)
    return -0.1 * 0.2 * np.sqrt(max(ahead.shape)) * orthogonalized(ahead)


@pytest.mark.pax('DistributedShampoo')
@pytest.mark.parametrize(
    ('shape', 'axes', 'per_head'),
    [
        ((6, 4), MatrixAxes((-2,), (-1,)), True),
        ((6, 2, 5), QUERY, False),
        ((6, 2, 5), QUERY, True),
        ((2, 5, 6), OUTPUT, False),
        ((2, 5, 6), OUTPUT, True),
        ((3, 2, 4, 6), MatrixAxes((-2,), (-1,)), True),
    ],
    ids=['matrix', 'query', 'head of query', 'output', 'head of output', 'experts of layers'],
)
def test_updates_are_those_of_numpy_for_each_matrix(shape: Any, axes: Any, per_head: bool) -> None:
    gradients = [RNG.normal(size=shape).astype(np.float32) for _ in range(3)]
    optimizer = Muon(weight_decay=None, per_head=per_head, iterations=5)
    made = optimizer.make(jnp.float32(0.1), {'w': True}, matrices={'w': axes})
    params = {'w': jnp.zeros(shape)}
    state, update = made.init(params), jax.jit(made.update)
    for gradient in gradients:
        got, state = update({'w': jnp.asarray(gradient)}, state, params)
    wanted = np.zeros(shape)
    for at in matrices_of(shape, axes, per_head):
        each = [gradient[at] for gradient in gradients]
        inputs = 10 if axes == OUTPUT and not per_head else each[0].shape[0]
        moved = by_numpy([gradient.reshape(inputs, -1) for gradient in each])
        wanted[at] = moved.reshape(each[0].shape)
    np.testing.assert_allclose(got['w'], wanted, rtol=1e-3, atol=1e-5)


def matrices_of(shape: Any, axes: MatrixAxes, per_head: bool) -> list[Any]:
    """The places of all matrices in an array."""
    whole = slice(None)
    if axes.heads and per_head:
        return [(whole, i) if axes == QUERY else i for i in range(2)]
    return [whole] if len(shape) < 4 else [(i, j) for i in range(3) for j in range(2)]


def test_all_but_matrices_have_adamw() -> None:
    gradients = jax.tree.map(jnp.cos, PARAMS)
    got = updates(Muon(b2=0.9), PARAMS, gradients, MASK)
    wanted = updates(AdamW(b2=0.9), PARAMS, gradients, MASK)
    same = jax.tree.map(lambda one, other: bool(jnp.array_equal(one, other)), got, wanted)
    assert same == {
        'embedding': {'table': True},
        'stack': {'layers_0x3': {'kernel': False, 'scale': True}},
    }
    # The matrices have updates of the size of Adam's, so that its learning rate fits.
    decay = -0.1 * 0.1 * PARAMS['stack']['layers_0x3']['kernel']
    moved = got['stack']['layers_0x3']['kernel'] - decay
    assert 0.1 * 0.2 * 0.6 < float(jnp.sqrt(jnp.mean(moved**2))) < 0.1 * 0.2 * 1.3


def language_model(dims: int = 16, **learner: Any) -> Experiment:
    kinds = [FeedForward(bias='zeros'), GatedFeedForward(hidden_dims=2 * dims)]
    blocks = [TransformerBlock(Attention(4, num_kv_heads=2, bias='zeros'), kind) for kind in kinds]
    stack = Stack(blocks, repeats=1)
    model = TransformerLm(Embedding(VOCAB, dims), stack, head=Linear(VOCAB))
    task = LanguageModelTask(model, Learner(0.01, optimizer=Muon(), **learner))
    return Experiment(task, CountingInput(batch_size=8, is_training=True))


def test_hidden_matrices_are_those_of_attention_and_feed_forward() -> None:
    made = language_model()
    boxes = abstract_params(made.task, made.train_input.element_spec())
    found = {
        names(path)[0].removeprefix('stack.'): axes
        for path, axes in leaves(state_lib.matrices(boxes)).items()
        if axes is not None
    }
    inner = dict.fromkeys(('query', 'key', 'value'), QUERY) | {'output': OUTPUT}
    plain = MatrixAxes((-2,), (-1,))
    wanted = {
        f'layers_{i}.attention.{name}': axes for i in range(2) for name, axes in inner.items()
    }
    wanted |= {f'layers_0.feed_forward.{name}': plain for name in ('up', 'down')}
    wanted |= {f'layers_1.feed_forward.{name}': plain for name in ('gate', 'up', 'down')}
    assert found == wanted  # Neither the table, nor the head, nor a bias with two axes.


def test_a_router_is_no_hidden_matrix() -> None:
    x_BTD = jnp.ones((2, 3, 6))
    boxes: Any = jax.eval_shape(Experts(4, 5).module().init, jax.random.key(0), x_BTD)
    found = leaves(state_lib.matrices(boxes['params']))
    assert {names(path)[0] for path, axes in found.items() if axes is None} == {'router.kernel'}
    assert len(found) == 4


def test_the_rate_of_a_matrix_keeps_its_effect_at_other_widths() -> None:
    base = {'task.model.embedding.dims': 16}
    base['task.model.stack.layers[1].feed_forward.hidden_dims'] = 32
    made = language_model(64, width_scaling=WidthScaling(base=base))
    factors = width_factors(made.task, made.train_input.element_spec())
    assert factors is not None
    rates = factors.rates()
    attention, feed_forward = (
        rates['stack']['layers_1'][name] for name in ('attention', 'feed_forward')
    )
    # An orthogonal matrix of Adam's size has singular values that grow with the root of its width.
    wanted = Rate(elementwise=0.25, orthogonal=0.5, per_head=0.5)
    assert feed_forward['up'] == feed_forward['down'] == wanted
    assert (
        attention['value'] == attention['output'] == wanted
    )  # Heads have grown, not their number.
    assert attention['query'] == Rate(0.125, 0.25, 0.25)  # 1/d attention: see the paper of muP.
    assert rates['embedding']['table'] == Rate(0.5, 0.5, 0.5)


def test_parameters_without_matrices_and_the_optimizer_of_optax_are_refused() -> None:
    with pytest.raises(UserError, match='Muon finds no hidden matrix'):
        Muon().make(jnp.float32(0.1), MASK)
    with pytest.raises(ValueError, match=re.escape('optax.contrib.muon cannot train here: ')):
        Optax(name='contrib.muon')
    for fields in ({'momentum': 1.0}, {'iterations': 0}, {'rms': 0.0}):
        with pytest.raises(ValueError, match='must'):
            Muon(**fields)


def test_the_state_of_a_matrix_is_one_moment() -> None:
    made = Muon().make(jnp.zeros(()), MASK, matrices=MATRICES)
    kernel = PARAMS['stack']['layers_0x3']['kernel'].shape
    shapes = [leaf.shape for leaf in jax.tree.leaves(made.init(PARAMS))]
    assert shapes.count(kernel) == 1
