"""Pipelined steps on 8 simulated devices, in processes of their own."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.servers.processes import all_passed, job, on_devices
from trainer.runtime.metric_writer import read_metrics

pytestmark = pytest.mark.slow

_LOSSES = """
import json
import jax
from tests.factories.tiny import experiment
from trainer.layers import (
    Attention, Embedding, GatedFeedForward, Pipeline, Stack, TransformerBlock, TransformerLm,
)
from trainer.mesh import Mesh
from trainer.program.program import program_for
from trainer.program.setup import localized

block = TransformerBlock(Attention(4), GatedFeedForward(32))
meshes = {
    'one device': (Mesh(data=1), None),
    '2 stages': (Mesh(data=2, stage=2, tensor=2), Pipeline(num_microbatches=4)),
    '4 stages': (Mesh(data=1, stage=4, fsdp=2), Pipeline(microbatch_size=4)),
    '2 stages, circular': (Mesh(data=1, stage=2, fsdp=2, tensor=2), Pipeline(4, None, 2)),
    'batch over stages': (
        Mesh(data=2, stage=4, rules={'batch': ['stage', 'data']}), Pipeline(num_microbatches=2),
    ),
}
out = {}
for name, (mesh, pipeline) in meshes.items():
    stack = Stack([block.clone(deep=True)], repeats=4, scan='always', pipeline=pipeline)
    model = TransformerLm(Embedding(32, 16), stack)
    made = localized(experiment(task__model=model, train_input__batch_size=16))
    devices = jax.devices()[:1] if pipeline is None else jax.devices()
    program = program_for(made.task, mesh.make(devices), made.train_input.element_spec())
    values, key = program.values(made.task), program.random_key(0)
    state, losses = program.init(key, values), []
    for _ in range(20):
        batch = program.put(made.train_input.get_next())
        state, metrics = program.train_step(state, batch, key, values)
        losses.append(float(metrics['loss'].mean))
    evaluate = program.eval_step(made.train_input.element_spec())
    evaluated = evaluate(state.variables, batch, values)
    out[name] = [*losses, float(evaluated['loss'].mean)]
print(json.dumps(out))
"""


@pytest.mark.pax('`LayerwiseShardablePipelined`')
def test_any_number_of_stages_has_the_losses_of_one_device() -> None:
    losses = json.loads(on_devices(_LOSSES))
    alone = losses.pop('one device')
    for name, of_mesh in losses.items():
        np.testing.assert_allclose(of_mesh, alone, rtol=1e-5, err_msg=name)


_GRADIENTS = """
import functools
import jax
import jax.numpy as jnp
import numpy as np
from trainer import state as states
from trainer.layers import (
    Attention, Embedding, FeedForward, Pipeline, Positions, SharedWithPrevious, Stack,
    TransformerBlock, TransformerLm,
)
from trainer.layers.base import AUX_LOSS, SUMMARIES, ForwardContext, forward_context
from trainer.mesh import Mesh

B, T, V = 16, 16, 32
mesh = Mesh(data=2, stage=2, tensor=2).make()
ids = jax.random.randint(jax.random.key(2), (B, T), 0, V)
segments = jnp.broadcast_to(1 + (jnp.arange(T) >= 10), ids.shape)
batch = jax.device_put((ids, Positions.packed(segments)), mesh.placed(mesh.spec('batch')))


class Balanced(TransformerBlock):
    def forward(self, x_BTD, positions=None):
        self.add_aux_loss('square', 0.01 * jnp.mean(jnp.square(x_BTD)))
        self.add_summary('mean', jnp.mean(x_BTD))
        return super().forward(x_BTD, positions)


def model(**fields):
    kinds = [Attention(2), Attention(2, window=4)]
    blocks = [Balanced(each, FeedForward(hidden)) for each, hidden in zip(kinds, (32, 16))]
    stack = Stack([blocks[0], SharedWithPrevious(), blocks[1]], repeats=4, scan='always', **fields)
    return TransformerLm(Embedding(V, 16), stack).module()


def loss(module, training, params, batch):
    weights = jnp.ones(B)
    context = ForwardContext(training=training, mesh=mesh, example_weights=weights)
    with forward_context(context):
        logits, left = module.apply(
            {'params': params}, *batch, rngs={'dropout': jax.random.key(5)},
            mutable=[AUX_LOSS, SUMMARIES],
        )
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), batch[0][..., None], -1)
    return sum(map(jnp.sum, jax.tree.leaves(left[AUX_LOSS]))) - jnp.mean(log_probs), left


boxed = jax.eval_shape(lambda: model().init(jax.random.key(0), *batch)['params'])
params = jax.jit(
    lambda: states.unboxed(model().init(jax.random.key(0), *batch)['params']),
    out_shardings=states.params_shardings(boxed, mesh),
)()


def results(training=True, **fields):
    function = functools.partial(loss, model(**fields), training)
    if training:
        function = jax.value_and_grad(function, has_aux=True)
    return jax.jit(function)


def same(found, expected, close=dict(rtol=1e-5, atol=1e-5)):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **close), found, expected)


expected = results()(params, batch)
same(results(pipeline=Pipeline(num_microbatches=4), remat='dots')(params, batch), expected)
circular = results(pipeline=Pipeline(4, None, 2), save_names=['context'])
same(circular(params, batch), expected)
evaluated = results(training=False, pipeline=Pipeline(num_microbatches=4), remat='none')
same(evaluated(params, batch), (expected[0][0], expected[0][1]))
two = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
packed = jax.vmap(results(pipeline=Pipeline(num_microbatches=2)), in_axes=(0, None))
same(jax.tree.map(lambda leaf: leaf[0], packed(two, batch)), expected)
print('equal')
"""


def test_gradients_losses_of_layers_and_summaries_are_those_of_the_scan() -> None:
    assert on_devices(_GRADIENTS) == 'equal\n'


def losses(directory: Path) -> dict[str, dict[int, float]]:
    """The losses of training and evaluation by step."""
    records = read_metrics(directory / 'metrics.jsonl')
    names = {name for each in records for name in each if re.fullmatch(r'.*/(loss|avg_xent)', name)}
    return {
        name: {each['step']: each[name] for each in records if name in each}
        for name in sorted(names)
    }


@pytest.mark.parametrize(
    ('mesh', 'processes'),
    [
        (['dcn_stage=1', 'stage=2', 'data=2', 'tensor=1'], 1),
        (['dcn_stage=2', 'stage=2', 'data=1'], 2),
    ],
    ids=['two stages of one process', 'four stages of two'],
)
def test_a_killed_run_goes_on_with_another_number_of_stages(
    mesh: list[str], processes: int, tmp_path: Path
) -> None:
    flags = '--exp=tests.factories.multi_process.Pipelined', '--set'
    one = f'--job_log_dir={tmp_path / "one"}', *flags, 'mesh.dcn_stage=1', 'mesh.data=1'
    all_passed(job('trainer.main', *one, 'mesh.tensor=1', processes=1, devices=1))
    two = f'--job_log_dir={tmp_path / "two"}', *flags
    killed = job('trainer.main', *two, 'mesh.data=2', devices=4, kill={1: 'step:13'})
    assert killed[1].code == -signal.SIGKILL
    sizes = [f'mesh.{size}' for size in mesh]
    out = all_passed(job('trainer.main', *two, *sizes, processes=processes, devices=4))
    assert 'resumed from step 10' in out
    found, wanted = losses(tmp_path / 'two'), losses(tmp_path / 'one')
    assert {name.partition('/')[0] for name in wanted} == {'train', 'eval'}
    for name, by_step in wanted.items():
        assert [*found[name]][-1] == [*by_step][-1] == 20
        assert found[name] == pytest.approx(by_step, rel=1e-5)


_LAYERS = """
import jax
import numpy as np
from tests.factories.tiny import experiment
from trainer.layers import (
    Attention, Embedding, Experts, FeedForward, LoRA, Pipeline, Router, Stack, TransformerBlock,
    TransformerLm,
)
from trainer.mesh import Mesh
from trainer.program.program import program_for
from trainer.program.setup import localized


def made(block, pipeline, adapters):
    stack = Stack([block.clone(deep=True)], repeats=2, scan='always', pipeline=pipeline)
    model = TransformerLm(Embedding(32, 16), stack)
    fields = dict(task__model=model, train_input__batch_size=16, task__adapters=adapters)
    return localized(experiment(**fields))


def losses(devices, mesh, *of_model):
    run = made(*of_model)
    program = program_for(run.task, mesh.make(devices), run.train_input.element_spec())
    values, key = program.values(run.task), program.random_key(0)
    state, found = program.init(key, values), []
    for _ in range(4):
        batch = program.put(run.train_input.get_next())
        state, metrics = program.train_step(state, batch, key, values)
        found.append(float(metrics['loss'].mean))
    return found


pipeline, attention = Pipeline(num_microbatches=2), r'stack\\.layers_\\d+\\.attention.*'
experts = Experts(4, 16, router=Router(balance_loss=None, z_loss=None))
for mesh, block, adapters in (
    (dict(tensor=2), TransformerBlock(Attention(4), FeedForward(32)), LoRA(2, targets=[attention])),
    (dict(expert=2), TransformerBlock(Attention(4), experts), None),
):
    alone = losses(jax.devices()[:1], Mesh(data=1), block, None, adapters)
    found = losses(jax.devices(), Mesh(data=2, stage=2, **mesh), block, pipeline, adapters)
    np.testing.assert_allclose(found, alone, rtol=1e-5)
print('equal')
"""


def test_adapters_and_experts_run_in_stages() -> None:
    assert on_devices(_LAYERS) == 'equal\n'
