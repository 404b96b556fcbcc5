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
from tests.factories.runs import resumed_after_an_interruption
from tests.factories.tiny_images import experiment
from trainer.inspect import layout
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
    got = resumed_after_an_interruption(made, tmp_path / 'parts')
    losses = [[each.metrics['eval/loss'] for each in one] for one in (got, expected)]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


@pytest.mark.pax('flax_adapter: any flax')
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


class Drawing(nn.Module):
    """Returns draws from several streams, the last of them in a scan."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def drawn(module: nn.Module, carry: None, _: Any) -> tuple[None, jax.Array]:
            return None, jax.random.normal(module.make_rng('scanned'))

        scan = nn.scan(drawn, split_rngs={'scanned': True}, length=3)
        streams = ('noise', 'noise', 'other', 'params')
        draws = [jax.random.normal(self.make_rng(stream)) for stream in streams]
        return x + self.param('by', nn.initializers.zeros, ()), *draws, *scan(self, None, None)[1]


class DrawingNnx(nnx.Module):
    """Returns draws from several streams, and a constant of its construction."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.by, self.rngs = nnx.Param(jnp.zeros(())), rngs
        self.forks = nnx.List([rngs.noise.fork(), rngs.noise.fork()])
        self.constant = nnx.data(jax.random.normal(rngs.params()))

    def __call__(self, x: Any) -> Any:
        streams = (self.rngs.noise, self.rngs.other, self.rngs.params, *self.forks)
        draws = [jax.random.normal(stream()) for stream in streams]
        return x + self.by, *draws, self.constant


class Drawn(LinenAdapter):
    """Has draws in place of outputs."""

    def make(self) -> nn.Module:
        return Drawing()


class DrawnNnx(NnxAdapter):
    """Has draws in place of outputs."""

    def make(self, rngs: nnx.Rngs) -> nnx.Module:
        return DrawingNnx(rngs)


@pytest.mark.contract
@pytest.mark.parametrize('model', [Drawn(), DrawnNnx()], ids=['linen', 'nnx'])
def test_each_stream_is_drawn_anew_in_training_and_constant_in_evaluation(model: Layer) -> None:
    module, variables = model.module(), nn.meta.unbox(init(model))

    def draws(seed: int | None, training: bool = True) -> list[float]:
        with forward_context(ForwardContext(training=training)):
            rngs = {} if seed is None else {'dropout': jax.random.key(seed)}
            found: Any = module.apply(variables, IMAGES, rngs=rngs, mutable=['non_trainable'])[0]
        return list(map(float, found[1:] if isinstance(model, Drawn) else found[1:-1]))

    assert draws(0) == draws(0)
    evaluated = draws(None, training=False)
    assert evaluated == draws(None, training=False)
    every = draws(0) + draws(1) + evaluated
    assert len(set(every)) == len(every)


def test_random_constants_of_an_nnx_module_are_the_same_in_each_step() -> None:
    module, variables = DrawnNnx().module(), nn.meta.unbox(init(DrawnNnx()))
    with forward_context(ForwardContext(training=True)):
        one, other = (
            module.apply(
                variables, IMAGES, rngs={'dropout': jax.random.key(i)}, mutable=['non_trainable']
            )[0][-1]
            for i in range(2)
        )
    assert one == other


class Noisy(LinenAdapter):
    """Logits plus noise of its own stream."""

    def make(self) -> nn.Module:
        training = self.training

        class Inner(nn.Module):
            @nn.compact
            def __call__(self, x: jax.Array) -> jax.Array:
                logits = nn.Dense(4)(x.mean((1, 2)))
                if not training:
                    return logits
                return logits + jax.random.normal(self.make_rng('noise'), logits.shape)

        return Inner()


@pytest.mark.parametrize('microbatches', [1, 2])
def test_noise_differs_in_each_step_of_a_program(microbatches: int) -> None:
    made = localized(experiment(Noisy()))
    made.task.learner.rebind(microbatches=microbatches, learning_rate=0.0)
    program, values = compiled(made)
    batch, key = program.put(made.train_input.get_next()), program.random_key(0)

    def losses() -> list[float]:
        state, found = program.init(key, values), []
        for _ in range(3):
            state, metrics = program.train_step(state, batch, key, values)
            found.append(float(metrics['loss'].mean))
        return found

    assert len(set(losses())) == 3
    assert losses() == losses()


class Sowing(nn.Module):
    """Sows a loss, a summary, and collections that a program leaves out."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        hidden = nn.BatchNorm(use_running_average=True)(nn.Dense(8)(x.mean((1, 2))))
        self.sow('aux_loss', 'l2', 0.5)
        self.sow('summaries', 'size', 3.0)
        self.sow('intermediates', 'hidden', hidden)
        self.sow('losses', 'l2', jnp.mean(hidden))
        self.sow('sums', 'l2', 1.0, lambda a, b: a + b, lambda: 0.0)
        return nn.Dense(4)(hidden)


class Sown(LinenAdapter):
    """Sows."""

    def make(self) -> nn.Module:
        return Sowing()


def test_sown_losses_are_added_summaries_logged_and_all_else_left_out(tmp_path: Path) -> None:
    reports = list(run(experiment(Sown(), num_steps=3), tmp_path))
    found = reports[-1].metrics
    assert found['train/aux_loss'] == found['eval/aux_loss'] == 0.5
    # Auxiliary losses train a model, and do not count as its quality.
    np.testing.assert_allclose(found['eval/loss'], found['eval/avg_xent'], rtol=1e-6)
    assert found['train/summaries/size'] == 3.0
    assert set(init(Sown())['non_trainable']) == {'batch_stats'}


def test_a_sown_loss_that_is_no_scalar_is_refused() -> None:
    class Vector(LinenAdapter):
        def make(self) -> nn.Module:
            class Inner(nn.Module):
                @nn.compact
                def __call__(self, x: Any) -> Any:
                    self.sow('aux_loss', 'each', x.mean((1, 2, 3)))
                    return nn.Dense(4)(x)

            return Inner()

    with pytest.raises(UserError, match=r"sows each of shape \(2,\) into 'aux_loss'"):
        init(Vector())


class Attending(nn.Module):
    """Attention, a norm and layers with a first axis of their number."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.LayerNorm()(nn.MultiHeadDotProductAttention(num_heads=2)(x, x))
        stacked = nn.vmap(
            nn.Dense, variable_axes={'params': 0}, split_rngs={'params': True}, in_axes=None,
            axis_size=2,
        )  # fmt: skip
        return stacked(8)(x)


def test_weight_decay_spares_biases_and_scales_whatever_their_axes() -> None:
    class Linen(LinenAdapter):
        def make(self) -> nn.Module:
            return Attending()

    class Nnx(NnxAdapter):
        def make(self, rngs: nnx.Rngs) -> nnx.Module:
            return nnx.MultiHeadAttention(num_heads=2, in_features=8, decode=False, rngs=rngs)

    for model in (Linen(), Nnx()):
        boxes = jax.tree_util.tree_leaves_with_path(
            init(model, X_BTD)['params'], is_leaf=lambda leaf: hasattr(leaf, 'decay')
        )
        for path, box in boxes:
            assert box.decay == (path[-1].key in ('kernel', 'embedding')), path


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

    with pytest.raises(UserError, match=r"parameter kernel: .* rule for the logical axis 'odd'"):
        layout(experiment(Odd()))
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
