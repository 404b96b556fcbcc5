"""Products of kernels in 8 bits compute and train nearly as in full precision."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.runs import final_state, resumed_after_an_interruption
from tests.factories.tiny import experiment
from tests.servers.processes import on_devices
from trainer.layers import (
    LSTM,
    Embedding,
    Float8,
    GatedFeedForward,
    Int8,
    LoRA,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.layers.float8_product import float8_product
from trainer.layers.int8_product import int8_product
from trainer.layers.precision import Precision
from trainer.layers.products import terms_of
from trainer.learner import SkipNonFinite
from trainer.learner.paths import leaves
from trainer.loop.train_loop import run
from trainer.program.setup import compiled, localized
from trainer.program.step_functions import abstract_metrics
from trainer.symbolic.errors import UserError

EQUATIONS = {
    'becd,edf->becf': ((2, 3, 4, 16), (3, 16, 8)),
    '...d,df->...f': ((2, 3, 16), (16, 8)),
    'btd,cdkh->btckh': ((2, 3, 16), (3, 16, 2, 4)),
    'btnh,nhd->btd': ((2, 3, 2, 8), (2, 8, 16)),
    'btnh,lnh->btnl': ((2, 3, 2, 8), (16, 2, 8)),
}


def error(found: Any, expected: Any) -> float:
    """The norm of the differences, as a share of the norm of the expected values."""
    found, expected = (np.asarray(each, np.float32) for each in (found, expected))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.pax('Hooks of quantization')
@pytest.mark.parametrize(
    'equation',
    ['becd,edf->becf', *(pytest.param(each, marks=pytest.mark.slow) for each in [*EQUATIONS][1:])],
)
def test_products_and_their_gradients_are_those_of_einsum(equation: str) -> None:
    shapes = EQUATIONS[equation]
    x, kernel = (jax.random.normal(jax.random.key(i), each) for i, each in enumerate(shapes))
    terms = terms_of(equation, x.ndim)
    like = jnp.einsum(equation, x, kernel)
    weights = jax.random.normal(jax.random.key(2), like.shape)
    # Rows of very different sizes have scales of their own in int8, and one range in float8.
    x = x.at[0].multiply(100.0)
    history = jnp.array([[0.0, jnp.max(jnp.abs(each))] for each in (x, kernel, weights)])

    products = (
        lambda x, kernel: jnp.einsum(equation, x, kernel),
        lambda x, kernel: int8_product(terms, jnp.float32, x, kernel),
        lambda x, kernel: float8_product(terms, jnp.float32, x, kernel, history),
    )

    @jax.jit
    def results(x: Any, kernel: Any) -> Any:
        pairs = (jax.vjp(product, x, kernel) for product in products)
        return [[y, *pull_back(weights)] for y, pull_back in pairs]

    expected, in_int8, in_float8 = results(x, kernel)
    assert 0 < max(map(error, in_int8, expected)) < 0.015
    assert error(in_int8[0][1], expected[0][1]) < 0.015
    assert 0.01 < max(map(error, in_float8, expected)) < 0.08


def test_the_largest_numbers_take_the_place_of_a_gradient_and_saturate_the_next_pass() -> None:
    terms = terms_of('bd,df->bf', 2)
    x, kernel = jnp.array([[1.0, -2.0]]), jnp.array([[0.5], [0.25]])

    def loss(x: Any, history: Any) -> Any:
        return 3 * jnp.sum(float8_product(terms, jnp.float32, x, kernel, history))

    newest = jax.grad(loss, argnums=1)(x, jnp.zeros((3, 2)))
    assert newest.tolist() == [[2.0, 0.0], [0.5, 0.0], [3.0, 0.0]]
    # A scale for numbers up to 2: the 4 becomes a 2.
    known = jnp.array([[2.0, 0.0], [0.5, 0.0], [3.0, 0.0]])
    assert float(loss(2 * x, known)) == pytest.approx(float(3 * (2 * 0.5 - 2 * 0.25)), rel=0.05)


def stepped(program: Any, made: Any, state: Any, values: Any) -> tuple[Any, Any]:
    batch = program.put(made.train_input.get_next())
    return program.train_step(state, batch, program.random_key(0), values)


@pytest.mark.pax('… OVERWRITE_WITH_GRADIENT')
def test_a_pass_overwrites_histories_and_a_skipped_step_leaves_them() -> None:
    made = localized(
        experiment(
            task__precision=Float8(passes=4),
            task__learner__microbatches=2,
            task__learner__ema_decay=0.5,
            task__learner__skip=SkipNonFinite(max_norm=1e9),
            task__model__stack__repeats=2,
            task__model__stack__scan='always',
        )
    )
    program, values = compiled(made)
    new = program.init(program.random_key(0), values)
    history = new.non_trainable['stack']['layers_0x2']['feed_forward']['up_float8_amax']
    assert history.shape == (2, 3, 4) and not history.any()
    assert not any('amax' in path[-1] for path in leaves(new.ema_params))
    state, _ = stepped(program, made, new, values)
    once = jax.device_get(state.non_trainable)
    for path, each in leaves(once).items():
        # Each of two microbatches is a pass; the kernel is the same in both.
        assert (each[..., :2] > 0).all() and not each[..., 2:].any(), path
        assert (each[:, 1, 0] == each[:, 1, 1]).all() and (each[:, 0, 0] != each[:, 0, 1]).any()
    numbers = {**values, 'learner.skip.max_norm': program.replicated(1e-9)}
    state, metrics = stepped(program, made, state, numbers)
    assert float(metrics['skipped_steps'].total) == 1
    for path, each in leaves(state.non_trainable).items():
        np.testing.assert_array_equal(each, leaves(once)[path])


def traced(**fields: Any) -> None:
    made = experiment(**fields)
    abstract_metrics(made.task, made.train_input.element_spec())


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (
            {'task__precision': Int8(targets=['.*quer'])},
            r"task\.precision\.targets\[0\]: no kernel is called '\.\*quer'",
        ),
        (
            {'task__precision': Float8(targets=['.*up', r'embedding\.table'])},
            r'targets\[1\]: .* It matches embedding\.table, which is no kernel inside the model',
        ),
        (
            {
                'task__precision': Int8(targets=[r'.*layers_0\..*']),
                'task__model__stack__repeats': 2,
                'task__model__stack__scan': 'always',
            },
            r"task\.precision\.targets: they match .* set scan='never'",
        ),
        (
            {'task__precision': Int8(), 'task__model__stack__layers': []},
            r'task\.precision: the model has no product of an activation and a kernel',
        ),
    ],
)
def test_targets_without_a_product_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        traced(**fields)


@pytest.mark.parametrize(
    ('precision', 'platform', 'capability', 'message'),
    [
        (Float8(), 'gpu', '8.0', r'Float8\(\) needs a GPU of compute capability 8\.9, and A has 8'),
        (Int8(), 'gpu', '7.0', r'Int8\(\) needs a GPU of compute capability 7\.5'),
        (Float8(), 'gpu', 'gfx942', r'Float8\(\) needs a GPU of NVIDIA'),
        (Float8(), 'gpu', '10.0', None),
        (Int8(), 'gpu', '8.0', None),
        (Float8(), 'cpu', None, None),
    ],
)
def test_a_device_without_units_for_it_is_refused_with_the_reason(
    precision: Precision, platform: str, capability: str | None, message: str | None
) -> None:
    device: Any = SimpleNamespace(platform=platform, compute_capability=capability, device_kind='A')
    if message is None:
        precision.require_device(device)
        return
    with pytest.raises(UserError, match=rf'task\.precision={message}'):
        precision.require_device(device)


def test_fields_are_checked() -> None:
    with pytest.raises(ValueError, match='passes'):
        Float8(passes=0)
    with pytest.raises(ValueError, match='targets must not be empty'):
        Int8(targets=[])


def losses(num_steps: int, **fields: Any) -> Any:
    made = localized(experiment(**fields))
    program, values = compiled(made)
    state, found = program.init(program.random_key(0), values), []
    for _ in range(num_steps):
        state, metrics = stepped(program, made, state, values)
        found.append(float(metrics['loss'].value()))
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize('precision', [Int8(), Float8()], ids=['int8', 'float8'])
def test_adapters_train_beside_rounded_products(precision: Precision) -> None:
    expected = losses(8, task__adapters=LoRA(4))
    found = losses(8, task__adapters=LoRA(4), task__precision=precision)
    assert (found != expected).all()
    np.testing.assert_allclose(found, expected, rtol=0.03)


@pytest.mark.slow
def test_products_in_the_loop_of_a_recurrence_stay_as_they_are() -> None:
    block = TransformerBlock(LSTM(), GatedFeedForward(16))
    model = TransformerLm(Embedding(32, 16), Stack([block, block.clone()]))
    expected, found = (
        losses(8, task__model=model.clone(deep=True), task__precision=each)
        for each in (None, Float8())
    )
    np.testing.assert_allclose(found, expected, rtol=0.03)


@pytest.mark.slow
def test_a_run_resumes_to_the_last_bit(tmp_path: Path) -> None:
    fields: dict[str, Any] = {'num_steps': 4, 'task__fprop_dtype': 'bfloat16'}
    made = experiment(task__precision=Float8(passes=2), **fields)
    reports = list(run(made.clone(deep=True), tmp_path / 'whole'))
    again = resumed_after_an_interruption(made.clone(deep=True), tmp_path / 'parts')
    loss = [[each.metrics['eval/loss'] for each in found] for found in (reports, again)]
    assert loss[0] == loss[1]
    states = [leaves(vars(final_state(made, tmp_path / each))) for each in ('whole', 'parts')]
    histories = [path for path in states[0] if 'amax' in path[-1]]
    assert len(histories) == 6
    for path in histories:
        np.testing.assert_array_equal(states[0][path], states[1][path])


_SCRIPT = """
import json
import jax
from tests.factories.tiny import experiment
from trainer.layers import Attention, Float8, GatedFeedForward, Int8, TransformerBlock
from trainer.mesh import Mesh
from trainer.program.program import program_for
from trainer.program.setup import localized

meshes = {'one': Mesh(data=1), 'fsdp': Mesh(data=1, fsdp=8), 'mixed': Mesh(2, fsdp=2, tensor=2)}
out = {}
for precision in (Int8(), Float8()):
    for name, mesh in meshes.items():
        made = localized(experiment(task__precision=precision.clone()))
        block = TransformerBlock(Attention(4), GatedFeedForward(32))
        scan = 'never' if name == 'fsdp' else 'always'
        made.task.model.stack.rebind(layers=[block], repeats=2, scan=scan)
        devices = jax.devices()[: 1 if name == 'one' else 8]
        program = program_for(made.task, mesh.make(devices), made.train_input.element_spec())
        values, key = program.values(made.task), program.random_key(0)
        state, losses = program.init(key, values), []
        for _ in range(4):
            batch = program.put(made.train_input.get_next())
            state, metrics = program.train_step(state, batch, key, values)
            losses.append(float(metrics['loss'].mean))
        out.setdefault(type(precision).__name__, []).append(losses)
print(json.dumps(out))
"""


@pytest.mark.slow
def test_meshes_and_scans_give_the_losses_of_one_device() -> None:
    for one, *others in json.loads(on_devices(_SCRIPT)).values():
        for each in others:
            np.testing.assert_allclose(each, one, rtol=2e-3)
