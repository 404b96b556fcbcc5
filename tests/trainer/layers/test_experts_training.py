"""Mixtures of experts in training: on meshes of 8 simulated devices, and as candidates."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyglove as pg
import pytest

from paxtune import tune
from paxtune.algorithms import Grid
from tests.factories.tiny import experiment
from tests.factories.tunables import Rates
from tests.servers.processes import all_passed, job, on_devices
from trainer.inspect import layout
from trainer.layers import Experts, FeedForward, Router
from trainer.mesh import Mesh
from trainer.runtime.metric_writer import read_metrics
from trainer.symbolic.errors import UserError

FEED_FORWARD = 'task.model.stack.layers[0].feed_forward'

_TRAINING = """
import json
import jax
from tests.factories.tiny import experiment
from trainer.layers import Attention, Experts, FeedForward, Stack, TransformerBlock
from trainer.learner import Learner, Muon
from trainer.mesh import Mesh
from trainer.program.program import program_for
from trainer.program.setup import localized

found = {}
for factor in (None, 1.0):
    layer = Experts(4, 16, capacity_factor=factor, shared=FeedForward(8))
    stack = Stack([TransformerBlock(Attention(2), layer)], repeats=2, scan='always')
    made = localized(
        experiment(task__model__stack=stack, task__learner=Learner(0.02, optimizer=Muon()))
    )
    batches = [made.train_input.get_next() for _ in range(20)]
    for name, mesh in {
        'one': Mesh(data=1),
        'experts': Mesh(data=2, expert=4),
        'all axes': Mesh(data=1, fsdp=2, expert=2, tensor=2),
    }.items():
        devices = jax.devices()[:1] if name == 'one' else jax.devices()
        program = program_for(made.task, mesh.make(devices), made.train_input.element_spec())
        values, key = program.values(made.task), program.random_key(0)
        state, of_mesh = program.init(key, values), []
        for batch in batches:
            state, metrics = program.train_step(state, program.put(batch), key, values)
            of_mesh.append([float(metrics[name].mean) for name in ('loss', 'aux_loss')])
        found[f'{name} {factor}'] = of_mesh
        if name != 'all axes':
            evaluated = program.eval_step(made.train_input.element_spec())
            metrics = evaluated(state.variables, program.put(batches[0]), values)
            found[f'evaluated {name} {factor}'] = float(metrics['loss'].mean)
        if name == 'experts':
            found[f'program {factor}'] = program.train_step.as_text()
        up = state.params['stack']['layers_0x2']['feed_forward']['up']
        assert up.sharding.shard_shape(up.shape)[1] == 4 // program.mesh.shape.get('expert', 1)
print(json.dumps(found))
"""

_GRADIENTS = """
import jax
import jax.numpy as jnp
import numpy as np
from trainer import state as state_lib
from trainer.layers import Experts
from trainer.layers.base import ForwardContext, forward_context
from trainer.mesh import Mesh

# Most tokens choose the same two experts, so devices exchange in several rounds.
x_BTD = jax.random.normal(jax.random.key(1), (8, 8, 6)).at[:, :, 0].add(4.0)
meshes = {
    'experts': Mesh(data=1, expert=8),
    'positions': Mesh(data=1, expert=2, sequence=2, tensor=2),
    'data': Mesh(data=8),
}
for factor in (None, 0.75):
    layer = Experts(8, 16, capacity_factor=factor)
    boxed = layer.module().init(jax.random.key(0), x_BTD)['params']
    params = state_lib.unboxed(boxed)

    def outputs(mesh, params, x_BTD, **context):
        def loss(params, x_BTD):
            with forward_context(ForwardContext(mesh=mesh, **context)):
                collected = ['aux_loss', 'summaries']
                y_BTD, left = layer.module().apply({'params': params}, x_BTD, mutable=collected)
            return jnp.sum(jnp.sin(y_BTD)) + sum(jax.tree.leaves(left['aux_loss'])), (y_BTD, left)

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, x_BTD)

    of_one = outputs(None, params, x_BTD)
    if factor is None:
        decoded = outputs(None, params, x_BTD[:, :1], cache_length=8)
    for name, mesh in meshes.items():
        mesh = mesh.make()
        placed = jax.device_put(params, state_lib.params_shardings(boxed, mesh))
        pairs = [(outputs(mesh, placed, x_BTD), of_one)]
        if name == 'positions' and factor is None:
            pairs.append((outputs(mesh, placed, x_BTD[:, :1], cache_length=8), decoded))
        for given, wanted in pairs:
            for one, other in zip(*map(jax.tree.leaves, (given, wanted)), strict=True):
                scale = np.max(np.abs(other))
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * scale, err_msg=name)
"""


def collectives(program: str) -> dict[str, int]:
    """The largest array of each kind of collective in layers with experts."""
    kinds = 'all-[a-z-]+|reduce-scatter|collective-permute'
    largest: dict[str, int] = {}
    for shapes, kind in re.findall(rf' = (.*?) ({kinds})\(.*feed_forward', program):
        arrays = re.findall(r'\w\[([\d,]*)\]', shapes)
        sizes = [math.prod(int(size) for size in each.split(',') if size) for each in arrays]
        largest[kind] = max(largest.get(kind, 0), *sizes)
    return largest


@pytest.mark.slow
def test_tokens_have_the_same_experts_on_one_device_and_on_eight() -> None:
    found = json.loads(on_devices(_TRAINING).splitlines()[-1])
    for factor in (None, 1.0):
        for name in ('all axes', 'experts'):
            np.testing.assert_allclose(found[f'{name} {factor}'], found[f'one {factor}'], rtol=1e-5)
        evaluated = found[f'evaluated experts {factor}'], found[f'evaluated one {factor}']
        assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-5)
        # No device has all 64 tokens of width 16, or the kernels [4, 16, 16] of all experts.
        sent = collectives(found[f'program {factor}'])
        assert sent.keys() == {'all-to-all', 'all-reduce'}
        assert max(sent.values()) < 64 * 16


@pytest.mark.slow
def test_gradients_of_experts_are_those_of_one_device_with_unequal_loads() -> None:
    on_devices(_GRADIENTS)


@pytest.mark.slow
def test_experts_in_two_processes_have_the_losses_of_one_device(tmp_path: Path) -> None:
    fields = ('train.num_train_steps=20', f'{FEED_FORWARD}=Experts(4, 16)')

    def losses(name: str, examples: int, *mesh: str, processes: int, devices: int) -> Any:
        flags = '--exp=tests.factories.multi_process.Text', f'--job_log_dir={tmp_path / name}'
        sizes = (f'{data}.batch_size={examples}' for data in ('train_input', 'eval_inputs.eval'))
        sets = '--set', *fields, *sizes, *mesh
        all_passed(job('trainer.main', *flags, *sets, processes=processes, devices=devices))
        records = read_metrics(tmp_path / name / 'metrics.jsonl')
        return [
            {key: each[key] for key in each if key.endswith(('step', '/loss'))} for each in records
        ]

    alone = losses('one', 8, 'mesh.data=1', processes=1, devices=1)
    both = losses('two', 4, 'mesh.data=1', 'mesh.expert=4', processes=2, devices=2)
    assert alone[-1]['step'] == 20 and {'train/loss', 'eval/loss'} <= set().union(*alone)
    assert both == [pytest.approx(each, rel=1e-5) for each in alone]


def test_experts_that_do_not_divide_over_devices_are_named() -> None:
    made = experiment(mesh=Mesh(data=1, expert=4))
    made.rebind({FEED_FORWARD: Experts(6, 8)})
    with pytest.raises(
        UserError, match=r"feed_forward\.\w+: axis 'experts' of size 6 does not div"
    ):
        layout(made)


@pytest.mark.slow
def test_experts_are_candidates_of_a_search(tmp_path: Path) -> None:
    space = Rates()
    space.rebind(
        {
            'task.learner.learning_rate': 0.01,
            FEED_FORWARD: pg.oneof(
                [FeedForward(8), Experts(4, 8), Experts(2, 8, Router(1), capacity_factor=1.0)]
            ),
        }
    )
    study = tune(space, num_trials=3, algorithm=Grid(), quiet=True, job_log_dir=tmp_path)
    trials = study.trials
    assert len(trials) == 3 and all(trial.reward is not None for trial in trials)
