"""Modules of flax train, are saved and are sharded like any layer."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pyglove as pg
import pytest
from flax import nnx

from tests.conformance.layer_examples import (
    IMAGES,
    X_BTD,
    Convolutional,
    OfLinen,
    OfNnx,
    Perceptron,
)
from tests.factories.parts import apply
from tests.factories.tiny_images import experiment
from trainer.layers import Layer, LinenAdapter, NnxAdapter, Residual, Stack
from trainer.layers.base import ForwardContext, forward_context
from trainer.loop.train_loop import run
from trainer.program.program import program_for
from trainer.program.setup import compiled, localized
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import from_json_text, to_json_text

both = pytest.mark.parametrize('model', [OfLinen(), OfNnx()], ids=['linen', 'nnx'])


def init(layer: Layer, x: Any = IMAGES) -> Any:
    return layer.module().init({'params': jax.random.key(0)}, x)


@both
@pytest.mark.fast(1)
@pytest.mark.contract
def test_modules_learn_and_resume_bit_for_bit(model: Layer, tmp_path: Path) -> None:
    made = experiment(model.clone(deep=True), num_steps=12)
    expected = list(run(made, tmp_path / 'whole'))
    asked = iter([False, False, True])
    got = []
    with pytest.raises(Exception, match='interrupted at step 3'):
        for each in run(made, tmp_path / 'parts', lambda: next(asked)):
            got.append(each)
    got += run(made, tmp_path / 'parts')
    losses = [[each.metrics['eval/loss'] for each in one] for one in (got, expected)]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_state_of_a_module_is_kept_and_not_trained() -> None:
    made = localized(experiment(OfLinen()))
    program, values = compiled(made)
    state, key = program.init(program.random_key(0), values), program.random_key(0)
    batch = made.train_input.get_next()
    before = jax.device_get(state)
    state, _ = program.train_step(state, program.put(batch), key, values)
    assert set(before.params) == {'Conv_0', 'BatchNorm_0', 'Dense_0'}
    convolved: Any = nn.Conv(8, (3, 3), use_bias=False).apply(
        {'params': before.params['Conv_0']}, batch['image']
    )
    mean = state.non_trainable['batch_stats']['BatchNorm_0']['mean']
    np.testing.assert_allclose(mean, 0.1 * np.mean(convolved, (0, 1, 2)), rtol=1e-3, atol=1e-6)


@pytest.mark.contract
def test_results_are_those_of_the_module_itself() -> None:
    variables = nn.meta.unbox(init(OfLinen()))
    alone: Any = Convolutional(8, train=False).apply(
        {'params': variables['params'], **variables['non_trainable']}, IMAGES
    )
    np.testing.assert_allclose(apply(OfLinen(), variables, IMAGES), alone, rtol=1e-6)
    variables = nn.meta.unbox(init(OfNnx()))
    with nnx.use_eager_sharding(False):
        module = Perceptron(192, 16, jnp.float32, nnx.Rngs(0))
    module.layers[0].kernel.set_value(variables['params']['layers']['0']['kernel'])
    module.layers[1].kernel.set_value(variables['params']['layers']['1']['kernel'])
    module.eval()
    alone = module(IMAGES.reshape(2, -1))
    np.testing.assert_allclose(apply(OfNnx(), variables, IMAGES), alone, rtol=1e-6)


@both
def test_dropout_is_drawn_anew_in_training_and_absent_in_evaluation(model: Layer) -> None:
    module, variables = model.module(), nn.meta.unbox(init(model))

    def outputs(seed: int, training: bool) -> Any:
        with forward_context(ForwardContext(training=training)):
            rngs = {'dropout': jax.random.key(seed)}
            out, _ = module.apply(variables, IMAGES, rngs=rngs, mutable=['non_trainable'])
            return out

    assert not np.allclose(outputs(0, True), outputs(1, True))
    np.testing.assert_array_equal(outputs(0, False), outputs(1, False))


@pytest.mark.pax('A partitioner of', 'flax_adapter: any flax')
@both
def test_axes_of_a_module_are_honoured(model: Layer) -> None:
    boxes = init(model)['params']
    first = boxes['Conv_0'] if isinstance(model, OfLinen) else boxes['layers']['0']
    assert first['kernel'].names[-2:] == (
        ('channels', 'mlp') if isinstance(model, OfLinen) else ('embed', 'mlp')
    )
    last = boxes['Dense_0'] if isinstance(model, OfLinen) else boxes['layers']['1']
    assert last['kernel'].names == (None, None) and last['bias'].names == (None,)
    assert last['kernel'].decay and not last['bias'].decay


def test_unknown_axes_are_refused() -> None:
    class Odd(LinenAdapter):
        def make(self) -> nn.Module:
            drawn = nn.initializers.ones
            return nn.Dense(4, kernel_init=nn.with_logical_partitioning(drawn, ('odd', 'mlp')))

    with pytest.raises(UserError, match=r"parameter kernel of its module: unknown .*\['odd'\]"):
        init(Odd())
    for kind in (LinenAdapter, NnxAdapter):
        with pytest.raises(NotImplementedError, match=r'has no make\(\)'):
            init(kind())


def test_modules_inside_of_modules_stand_where_they_belong() -> None:
    class Sequence(LinenAdapter):
        def make(self) -> nn.Module:
            return nn.Sequential([nn.Dense(3), nn.relu, nn.Dense(2)])

    params = init(Sequence())['params']
    assert sorted(params) == ['layers_0', 'layers_2']
    assert init(Residual(Narrow()), X_BTD)['params'].keys() == {'layer', 'norm'}


class Narrow(LinenAdapter):
    """Keeps the shape."""

    def make(self) -> nn.Module:
        return nn.Dense(8)

    def forward(self, x: jax.Array, *args: Any) -> Any:
        return self.run(x)


class NarrowNnx(NnxAdapter):
    """Keeps the shape."""

    def make(self, rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Linear(8, 8, rngs=rngs)


@pytest.mark.parametrize('layer', [Narrow(), NarrowNnx()], ids=['linen', 'nnx'])
def test_a_stack_of_modules_may_be_scanned(layer: Layer) -> None:
    stack = Stack([layer], repeats=3, scan='always')
    variables = init(stack, X_BTD)
    assert variables['params']['layers_0x3']['kernel'].names == ('layers', None, None)
    kernel = variables['params']['layers_0x3']['kernel'].value
    assert not np.allclose(kernel[0], kernel[1])
    x = X_BTD
    for each in kernel:
        x = x @ each
    got = apply(stack, nn.meta.unbox(variables), X_BTD)
    np.testing.assert_allclose(got, x, rtol=1e-4, atol=1e-5)


def test_the_fields_of_an_adapter_are_a_configuration_and_a_search_space() -> None:
    made = OfLinen(channels=pg.oneof([4, 8]))
    chosen = pg.materialize(made, pg.dna_spec(made).first_dna())
    again = from_json_text(to_json_text(chosen), OfLinen)
    assert again.channels == 4
    mesh = experiment(again).mesh.make(jax.devices()[:1])
    specs = localized(experiment(again)).train_input.element_spec()
    sizes = [
        program_for(experiment(OfLinen(channels)).task, mesh, specs).num_params()
        for channels in (4, 8)
    ]
    assert sizes == [3 * 9 * n + 2 * n + 10 * n + 10 for n in (4, 8)]
