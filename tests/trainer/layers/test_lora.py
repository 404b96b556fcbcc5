"""Low-rank adapters of kernels train alone, and compute the adapted kernels."""

import json
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from tests.factories.parts import applied, new_params
from tests.factories.tiny import CountingInput, experiment
from tests.servers.processes import on_devices
from trainer import layers
from trainer.inspect import layout
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.lora import LoRA, is_adapter
from trainer.layers.stack import per_layer
from trainer.learner import Muon, WidthScaling
from trainer.learner.paths import leaves
from trainer.metrics import Metrics
from trainer.program.flops import flops
from trainer.program.setup import compiled, localized
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import usual_values
from trainer.task import DeviceBatch, ModelCall, TrainStep
from trainer.tasks import LanguageModelTask

X_BTD = jax.random.normal(jax.random.key(5), (2, 6, 16))
LAYERS: dict[str, Callable[[], layers.Layer]] = {
    'attention': lambda: layers.Attention(4, 4, 2),
    'combined': lambda: layers.Attention(4, 4, 2, combine_qkv=True),
    'latent': lambda: layers.LatentAttention(2, 4, 4, rotary_dims=4),
    'feed_forward': lambda: layers.GatedFeedForward(24),
    'experts': lambda: layers.Experts(4, 24),
    'experts of a capacity': lambda: layers.Experts(4, 24, capacity_factor=4.0),
    'recurrence': lambda: layers.Mamba2(8, 4),
}
TARGETS = [r'.*\.(query|output|up|down)']


def adapted_params(layer: layers.Layer, lora: LoRA) -> Any:
    """New parameters with random adapters, none of which is zero."""
    with forward_context(ForwardContext(adapters=lora)):
        params = new_params(layer, X_BTD)
    keys = iter(jax.random.split(jax.random.key(7), 100))
    return jax.tree_util.tree_map_with_path(
        lambda path, x: (
            0.3 * jax.random.normal(next(keys), x.shape) if is_adapter(path[-1].key) else x
        ),
        params,
    )


def merged(params: Any, lora: LoRA) -> Any:
    """The parameters of a plain model that is an adapted one."""
    flat: dict[Any, Any] = leaves(params)
    out: dict[Any, Any] = {}
    for path, kernel in flat.items():
        if is_adapter(path[-1]):
            continue
        a: Any
        b: Any
        a, b, norm = (
            flat.get((*path[:-1], f'{path[-1]}_lora_{each}')) for each in ('a', 'b', 'magnitude')
        )
        if a is not None:
            batch = a.ndim + b.ndim - 2 - kernel.ndim
            before = kernel
            parts = zip(a, b, strict=True) if batch else [(a, b)]
            added = np.stack([np.tensordot(*each, 1) for each in parts])
            kernel = kernel + lora.scale() * added.reshape(kernel.shape)
            if norm is not None:
                inputs = tuple(range(batch, a.ndim - 1))
                size = np.sqrt((before**2).sum(inputs)) + norm
                kernel = kernel * np.expand_dims(size / np.sqrt((kernel**2).sum(inputs)), inputs)
        out[path] = kernel
    return unflatten_dict(out)


@pytest.mark.parametrize(
    ('name', 'dora'),
    [
        ('attention', True),
        ('experts of a capacity', False),
        *(
            pytest.param(name, dora, marks=pytest.mark.slow)
            for name in LAYERS
            for dora in (False, True)
        ),
    ],
)
def test_a_layer_computes_with_the_adapted_kernels(name: str, dora: bool) -> None:
    lora, layer = LoRA(2, alpha=3.0, dora=dora), LAYERS[name]()
    params = adapted_params(layer, lora)
    expected = applied(layer, merged(params, lora), X_BTD)
    found = applied(layer, params, X_BTD, adapters=lora)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    # Without the adapters it is the model of before.
    assert not np.allclose(expected, applied(layer, params, X_BTD), atol=1e-2)


def test_products_take_the_small_factors() -> None:
    layer, lora = layers.Linear(16), LoRA(2)
    x = jax.random.normal(jax.random.key(0), (64, 16))
    outer = layers.Chain([layer, layers.Linear(16)])
    with forward_context(ForwardContext(adapters=lora)):
        params = new_params(outer, x)
        count = flops(lambda p: outer.module().apply({'params': p}, x), params)
    product = 2 * 64 * 16
    # The last product makes the outputs, and has no adapter.
    assert count == product * (2 * 16 + 2 * 2)


def trained(scan: str = 'never', lora: LoRA | None = None, **fields: Any) -> tuple[Any, ...]:
    """The program of the tiny model, its state before two steps and after them, and the losses."""
    stack: dict[str, Any] = {'task__model__stack__repeats': 3, 'task__model__stack__scan': scan}
    made = localized(experiment(task__adapters=lora, **stack, **fields))
    program, values = compiled(made)
    key = program.random_key(0)
    state = program.init(key, values)
    before, losses = jax.device_get(state), []
    for _ in range(2):
        batch = program.put(made.train_input.get_next())
        state, metrics = program.train_step(state, batch, key, values)
        losses.append(float(metrics['loss'].value()))
    return program, before, state, losses


def test_adapters_alone_are_trained() -> None:
    lora = LoRA(2, dropout=0.1, targets=TARGETS)
    _, before, state, _ = trained('always', lora, task__learner__ema_decay=0.5)
    after = leaves(state.params)
    for path, leaf in leaves(before.params).items():
        assert np.array_equal(leaf, after[path]) != is_adapter(path[-1]), path
    names = {'.'.join(path) for path in leaves(state.ema_params)}
    assert names == {'.'.join(path) for path in after if is_adapter(path[-1])}
    assert len(names) == 8
    size = sum(x.size for path, x in after.items() if is_adapter(path[-1]))
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert sum(x.size for x in moments) == 2 * size
    # Evaluation has the averages in place of the adapters, beside the frozen parameters.
    evaluated = leaves(state.variables['params'])
    assert evaluated.keys() == after.keys()
    for path, leaf in evaluated.items():
        source = state.ema_params if is_adapter(path[-1]) else state.params
        np.testing.assert_array_equal(leaf, leaves(source)[path])


@pytest.mark.slow
def test_scanned_layers_have_adapters_as_others() -> None:
    lora = LoRA(2, targets=TARGETS, dora=True)
    (_, _, one, losses), (_, _, other, others) = (trained(s, lora) for s in ('never', 'always'))
    np.testing.assert_allclose(losses, others, rtol=1e-5)
    states = [per_layer(jax.device_get(state.params)) for state in (one, other)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *states)


@pytest.mark.slow
def test_a_new_adapter_changes_nothing() -> None:
    (_, plain, _, losses), (_, state, _, others) = (
        trained('never', lora) for lora in (None, LoRA(2, targets=TARGETS, dora=True))
    )
    np.testing.assert_allclose(losses[0], others[0], rtol=1e-6)
    for path, leaf in leaves(plain.params).items():
        np.testing.assert_array_equal(leaf, leaves(state.params)[path])


@pytest.mark.slow
def test_adapters_are_float32_beside_bfloat16_kernels() -> None:
    _, _, state, losses = trained('never', LoRA(2), task__param_dtype='bfloat16')
    for path, leaf in leaves(state.params).items():
        is_wide = is_adapter(path[-1]) or path[-1] == 'scale'  # Norms stay float32, too.
        assert leaf.dtype == ('float32' if is_wide else 'bfloat16')
    assert np.isfinite(losses).all() and losses[0] != losses[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    'fields',
    [
        {'optimizer': Muon()},
        {'width_scaling': WidthScaling({'task.model.embedding.dims': 8})},
        {'microbatches': 2},
    ],
)
def test_adapters_train_with_each_part_of_a_learner(fields: dict[str, Any]) -> None:
    fields = {f'task__learner__{name}': value for name, value in fields.items()}
    _, before, state, losses = trained('never', LoRA(2), **fields)
    assert np.isfinite(losses).all() and losses[0] != losses[1]
    for path, leaf in leaves(before.params).items():
        assert np.array_equal(leaf, leaves(state.params)[path]) != is_adapter(path[-1]), path


class Anchored(LanguageModelTask):
    """Measures the un-adapted model beside the loss."""

    def train_step(self, step: TrainStep) -> Metrics:
        def loss(call: ModelCall, batch: DeviceBatch) -> Metrics:
            inputs = self.model_inputs(batch)
            metrics = self.measure(call(*inputs), batch)
            plain = self.measure(call(*inputs, adapted=False), batch)
            return {**metrics, 'reference': plain['loss']}

        return step.minimize(loss)


def test_a_step_can_call_the_model_without_adapters() -> None:
    made = localized(experiment())
    task = Anchored(made.task.model.clone(), made.task.learner.clone(), adapters=LoRA(2))
    made.rebind(task=task)
    program, values = compiled(made)
    key = program.random_key(0)
    state = program.init(key, values)
    batch = program.put(CountingInput(batch_size=8).get_next())
    losses, references = [], []
    for _ in range(3):
        state, metrics = program.train_step(state, batch, key, values)
        losses.append(float(metrics['loss'].value()))
        references.append(float(metrics['reference'].value()))
    assert references == [losses[0]] * 3
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.parametrize(
    ('lora', 'scan', 'message'),
    [
        (LoRA(17), 'never', '.rank: 17 is above the width of stack.layers_0.attention.query'),
        (LoRA(2, targets=['.*quer']), 'never', ".targets[0]: no kernel is called '.*quer'"),
        (LoRA(2, targets=['.*query', 'q_proj']), 'never', "'q_proj'. There are stack.layers_"),
        (
            LoRA(2, targets=['.*query', r'embedding\.table']),
            'never',
            ".targets[1]: no kernel is called 'embedding\\\\.table'. It matches embedding.table",
        ),
        (
            LoRA(2, targets=[r'stack\.layers_[01].*']),
            'always',
            '.targets: they match stack.layers_0.attention.query but not '
            'stack.layers_2.attention.query, which are scanned together',
        ),
    ],
)
def test_adapters_that_do_not_fit_are_refused(lora: LoRA, scan: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        trained(scan, lora)
    assert str(caught.value).startswith('task.adapters')


def test_dropout_is_refused_where_no_product_takes_the_kernel() -> None:
    layer, lora = layers.Experts(4, 24), LoRA(2, dropout=0.1)
    with forward_context(ForwardContext(adapters=lora)):
        params = new_params(layer, X_BTD)
    with pytest.raises(
        UserError, match=r'^task\.adapters\.dropout: up is no factor of a plain product'
    ):
        applied(layer, params, X_BTD, adapters=lora, training=True)


def test_impossible_fields_are_refused() -> None:
    for fields, message in (
        ({'rank': 0}, 'rank'),
        ({'alpha': 0.0}, 'alpha'),
        ({'dropout': 1.5}, 'dropout'),
        ({'targets': []}, 'targets must not be empty'),
        ({'targets': ['(']}, r'targets\[0\] is not a regular expression'),
    ):
        with pytest.raises(ValueError, match=message):
            LoRA(**fields)


_SCRIPT = """
import json
import jax
from tests.factories.tiny import experiment
from trainer.layers import Attention, GatedFeedForward, LoRA, TransformerBlock
from trainer.mesh import Mesh
from trainer.program.program import program_for
from trainer.program.setup import localized

meshes = {'one': Mesh(data=1), 'fsdp': Mesh(data=1, fsdp=8), 'mixed': Mesh(2, fsdp=2, tensor=2)}
out = {}
for name, mesh in meshes.items():
    for scan in ('never', 'always'):
        made = localized(experiment(task__adapters=LoRA(2, dropout=0.1, dora=True)))
        block = TransformerBlock(Attention(4), GatedFeedForward(32))
        made.task.model.stack.rebind(layers=[block], repeats=2, scan=scan)
        devices = jax.devices()[: 1 if name == 'one' else 8]
        program = program_for(made.task, mesh.make(devices), made.train_input.element_spec())
        values, key = program.values(made.task), program.random_key(0)
        state, losses = program.init(key, values), []
        for _ in range(4):
            batch = program.put(made.train_input.get_next())
            state, metrics = program.train_step(state, batch, key, values)
            losses.append(float(metrics['loss'].mean))
        a = [x for path, x in jax.tree_util.tree_leaves_with_path(state.params)
             if path[-1].key == 'query_lora_a'][0]
        out[f'{name} {scan}'] = losses, a.addressable_shards[0].data.size / a.size
print(json.dumps(out))
"""


@pytest.mark.slow
def test_meshes_and_scans_give_the_losses_of_one_device() -> None:
    found = json.loads(on_devices(_SCRIPT))
    assert found['fsdp never'][1] == 1 / 8
    first, _ = found['one never']
    assert first[-1] < first[0]
    for losses, _ in found.values():
        np.testing.assert_allclose(losses, first, rtol=1e-5)


def test_usual_values_are_those_of_adapters() -> None:
    lora = LoRA(rank=8, alpha=16.0)
    found = usual_values(experiment(task__adapters=lora))
    assert found['task.adapters.alpha'].value == 16
    assert found['task.learner.learning_rate'].value == 2e-4
    assert usual_values(experiment())['task.learner.learning_rate'].value > 1e-3


def test_trained_and_frozen_parameters_are_counted() -> None:
    plain, found = (layout(experiment(task__adapters=lora), 1) for lora in (None, LoRA(2)))
    assert plain.num_trained == plain.num_params
    assert found.num_trained == found.num_params - plain.num_params
    assert found.gradient_bytes == 4 * found.num_trained
    # Two moments, and the steps of the run and of the optimizer.
    assert found.state_bytes == 4 * (found.num_params + 2 * found.num_trained) + 8
