"""Frozen kernels beside adapters are stored in few bits."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.runs import final_state, measured
from tests.factories.tiny import experiment
from trainer.experiment import Experiment
from trainer.layers import Attention, GatedFeedForward, LoRA, TransformerBlock
from trainer.layers.lora import is_adapter
from trainer.layers.quantized import dequantized, quantized, scale_shape
from trainer.layers.stack import per_layer
from trainer.learner.paths import leaves
from trainer.program.program import Program
from trainer.program.setup import compiled, localized
from trainer.state import TrainState

BITS: dict[str, Any] = {'int8': np.dtype('int8'), 'nf4': np.dtype('uint8')}


def made_of(format: Any, scan: str = 'never', **fields: Any) -> Experiment:
    made = experiment(task__adapters=LoRA(2, quantized=format), **fields)
    block = TransformerBlock(Attention(4), GatedFeedForward(32))
    made.task.model.stack.rebind(layers=[block], repeats=2, scan=scan)
    return made


def trained(made: Experiment, count: int = 4) -> tuple[Program, TrainState, TrainState, Any]:
    """The program, the state before some steps and after them, and the losses."""
    made = localized(made)
    program, values = compiled(made)
    key = program.random_key(0)
    state = program.init(key, values)
    before, losses = jax.device_get(state), []
    for _ in range(count):
        batch = program.put(made.train_input.get_next())
        state, metrics = program.train_step(state, batch, key, values)
        losses.append(float(metrics['loss'].value()))
    return program, before, state, losses


@pytest.mark.parametrize(('format', 'error'), [('int8', 0.01), ('nf4', 0.12)])
def test_a_quantized_kernel_is_nearly_the_kernel(format: Any, error: float) -> None:
    kernel = np.random.default_rng(0).normal(size=(128, 4, 8)).astype(np.float32)
    shape = scale_shape(kernel.shape, 0)
    assert shape == (2, 4, 8)
    found = quantized({'query': kernel, 'query_lora_scale': np.ones(shape)}, format)
    assert found['query'].dtype == BITS[format] and found['query_lora_scale'].shape == shape
    again = np.asarray(dequantized(found['query'], found['query_lora_scale']))
    assert np.linalg.norm(again - kernel) < error * np.linalg.norm(kernel)


@pytest.mark.slow
@pytest.mark.parametrize('format', BITS)
def test_adapters_train_beside_quantized_kernels(format: Any) -> None:
    (_, before, state, losses), (_, _, other, others), (_, plain, _, wide) = (
        trained(made) for made in (made_of(format), made_of(format, 'always'), made_of(None))
    )
    assert losses[-1] < losses[0]
    # New values of scanned layers differ in the last bit, and may round to the next level.
    np.testing.assert_allclose(losses, others, rtol=1e-3)
    np.testing.assert_allclose(losses, wide, rtol=0.05)
    assert losses != wide
    of_scanned = leaves(per_layer(jax.device_get(other.params)))
    for path, leaf in leaves(before.params).items():
        after = leaves(jax.device_get(state.params))[path]
        assert np.array_equal(leaf, after) != is_adapter(path[-1]), path
        if (*path[:-1], f'{path[-1]}_lora_scale') in leaves(before.params):
            assert leaf.dtype == BITS[format]
            assert np.mean(after != of_scanned[path]) < 0.02, path
        elif path in leaves(plain.params):
            np.testing.assert_array_equal(leaf, leaves(plain.params)[path])


@pytest.mark.slow
def test_a_run_quantizes_the_kernels_of_its_source(tmp_path: Path) -> None:
    plain = made_of(None).rebind({'task.adapters': None}, raise_on_no_change=False)
    plain.train.rebind(num_train_steps=2)
    measured(plain, tmp_path / 'source')
    source = str(tmp_path / 'source' / 'checkpoints')
    made = made_of('nf4', num_steps=3, train__init_from_checkpoint=source)
    measured(made, tmp_path / 'run')
    found, begun = (
        final_state(each, tmp_path / name) for each, name in ((made, 'run'), (plain, 'source'))
    )
    own = leaves(found.params)
    kernel = leaves(begun.params)['stack', 'layers_1', 'feed_forward', 'up']
    scale = own['stack', 'layers_1', 'feed_forward', 'up_lora_scale']
    assert scale.shape == scale_shape(kernel.shape, 0)
    wanted = quantized({'up': kernel, 'up_lora_scale': scale}, 'nf4')
    np.testing.assert_array_equal(wanted['up'], own['stack', 'layers_1', 'feed_forward', 'up'])
    table = leaves(begun.params)['embedding', 'table']
    np.testing.assert_array_equal(table, own['embedding', 'table'])
