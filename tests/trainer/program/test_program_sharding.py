"""Meshes of 8 simulated devices, in a process of their own."""

import json

import numpy as np
import pytest

from tests.servers.processes import on_devices

pytestmark = pytest.mark.slow

Runs = dict[str, tuple[list[float], float, int]]
"""By mesh: losses, the part of a weight that a device has, the memory that each device needs."""

_SCRIPT = """
import json
import jax
import numpy as np
from tests.factories.tiny import experiment, model
from trainer.layers import Dropout, GatedFeedForward
from trainer.layers import Attention, Embedding, Stack, TransformerBlock, TransformerLm
from trainer.mesh import Mesh
from trainer.program.setup import compiled, localized

block = TransformerBlock(Attention(4), GatedFeedForward(32), dropout=Dropout(0.1))
model = TransformerLm(Embedding(32, 16), Stack([block], repeats=2, scan='always'))
meshes = {
    'one device': Mesh(data=1), 'data': Mesh(data=8), 'fsdp': Mesh(data=1, fsdp=8),
    'tensor': Mesh(data=2, tensor=4), 'mixed': Mesh(data=2, fsdp=2, tensor=2),
    'sequence': Mesh(data=2, sequence=4),
    'slices': Mesh(data=1, fsdp=1, sequence=2, tensor=2, dcn_data=1, dcn_fsdp=2),
    'experts': Mesh(data=2, expert=4), 'stages': Mesh(data=4, stage=2),
    'own': Mesh(data=2, axes={'mine': 4}, rules={'mlp': 'mine', 'batch': 'data'}),
    'one device, accumulated': Mesh(data=1), 'mixed, accumulated': Mesh(data=2, fsdp=2, sequence=2),
}
out, programs, states = {}, {}, {}
for name, mesh in meshes.items():
    devices = jax.devices()[:1] if 'one' in name else jax.devices()
    made = localized(experiment(task__model=model.clone(deep=True)))
    made.task.learner.rebind(microbatches=2 if 'accumulated' in name else 1)
    made.rebind({'train_input.batch_size': 16, 'eval_inputs.eval.batch_size': 16})
    from trainer.program.program import program_for
    program = program_for(made.task, mesh.make(devices), made.train_input.element_spec())
    values, key = program.values(made.task), program.random_key(0)
    state, losses = program.init(key, values), []
    for _ in range(10):
        batch = program.put(made.train_input.get_next())
        state, metrics = program.train_step(state, batch, key, values)
        losses.append(float(metrics['loss'].mean))
    up = state.params['stack']['layers_0x2']['feed_forward']['up']
    moment = state.opt_state[0][0].mu['stack']['layers_0x2']['feed_forward']['up']
    assert up.sharding == moment.sharding
    if name == 'data':  # Replicated training: all devices have the same, to the last bit.
        for leaf in jax.tree.leaves(state):
            first, *others = [np.asarray(shard.data) for shard in leaf.addressable_shards]
            assert leaf.sharding.is_fully_replicated and len(others) == 7
            assert all(np.array_equal(first, other) for other in others)
    parts = batch['ids'].addressable_shards[0].data.shape
    sizes = program.mesh.shape
    assert parts == (16 // sizes['data'] // sizes['fsdp'] // sizes.get('expert', 1),
                     8 // sizes['sequence']), parts
    out[name] = [losses, up.addressable_shards[0].data.size / up.size]
    out[name].append(program.device_memory_bytes())
    programs[name], states[name] = program, state

# From each mesh to the next one: a run that goes on, and another that begins with its parameters.
import tempfile
import numpy as np
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.checkpoints.manifest import Progress
from trainer.experiment import Checkpoints
from trainer.checkpoints.retention import RetentionPolicy
from trainer.warm_start.warm_start import WarmStartLoader, warm_start_sources
state = states['data']
wanted = jax.device_get(state)
same = np.testing.assert_array_equal
made = localized(experiment(task__model=model.clone(deep=True)))
for name in ('fsdp', 'tensor', 'mixed', 'own', 'stages', 'data'):
    directory = tempfile.mkdtemp()
    checkpoints = CheckpointStore(directory, RetentionPolicy(Checkpoints()))
    checkpoints.save(10, state, Progress())
    checkpoints.close()
    program = programs[name]
    reader = CheckpointStore(directory)
    state = reader.restore(program.abstract_state).state
    reader.close()
    jax.tree.map(same, jax.device_get(state), wanted)
    made.rebind({'train.init_from_checkpoint': directory})
    warm = WarmStartLoader(made, warm_start_sources(made, '/nowhere'), program)
    begun = warm.load(program.random_key(0), program.values(made.task))
    jax.tree.map(same, jax.device_get(begun.params), wanted.params)
    for each in (state, begun):
        assert jax.tree.map(lambda leaf: leaf.sharding, each) == jax.tree.map(
            lambda leaf: leaf.sharding, program.abstract_state
        )
print(json.dumps(out))
"""


@pytest.fixture(scope='module')
def runs() -> Runs:
    printed = on_devices(_SCRIPT)
    return json.loads(printed)


@pytest.mark.pax('--globally_use_hardware_rng', 'PjitPartitioner')
@pytest.mark.pax('PmapPartitioner', 'Sharding: `BoxedParam`, `to_partition_spec`')
@pytest.mark.parametrize(
    'mesh',
    [
        'data',
        'fsdp',
        'tensor',
        'mixed',
        'sequence',
        'slices',
        'experts',
        'stages',
        'own',
        'mixed, accumulated',
    ],
)
@pytest.mark.sentinel
def test_every_mesh_gives_the_losses_of_one_device(runs: Runs, mesh: str) -> None:
    alone = runs['one device, accumulated' if 'accumulated' in mesh else 'one device']
    np.testing.assert_allclose(runs[mesh][0], alone[0], rtol=1e-5)


def test_weights_are_divided(runs: Runs) -> None:
    parts = {mesh: part for mesh, (_, part, _) in runs.items() if 'accumulated' not in mesh}
    assert parts == {
        'one device': 1, 'data': 1, 'fsdp': 1 / 8, 'tensor': 1 / 4, 'mixed': 1 / 4,
        'sequence': 1, 'slices': 1 / 4, 'experts': 1, 'stages': 1 / 2, 'own': 1 / 4,
    }  # fmt: skip


def test_dividing_the_work_takes_less_memory_of_each_device(runs: Runs) -> None:
    memory = {mesh: needed for mesh, (_, _, needed) in runs.items()}
    assert memory['fsdp'] < memory['data'] < memory['one device']
    assert memory['sequence'] < memory['one device']
