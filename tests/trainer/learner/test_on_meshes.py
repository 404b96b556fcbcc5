"""Optimizer state on meshes of 8 simulated devices, in their own process."""

import json

import numpy as np
import pytest

from tests.servers.processes import on_devices

_SCRIPT = r"""
import json
import tempfile
import jax
import numpy as np
from tests.factories.tiny import experiment
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.checkpoints.manifest import Progress
from trainer.learner import Adafactor, AdamW, AuxiliaryOptimizer, Freeze, Learner, Muon
from trainer.learner.paths import keys
from trainer.mesh import Mesh
from trainer.checkpoints.retention import RetentionPolicy
from trainer.program.program import program_for
from trainer.program.setup import localized

learner = Learner(
    0.1,
    optimizer=Adafactor(min_dim_size_to_factor=2, momentum=0.9),
    auxiliary_optimizers={
        'table': AuxiliaryOptimizer(['embedding.*'], 0.01, optimizer=AdamW(clip_threshold=1.0)),
        'attention': AuxiliaryOptimizer([r'.*\.attention\..*'], 0.01, optimizer=Muon()),
    },
    freeze=Freeze(['final_norm.*']),
    ema_decay=0.9,
)
made = localized(
    experiment(
        task__model__stack__repeats=2, task__model__stack__scan='always', task__learner=learner
    )
)
meshes = {
    'one': Mesh(data=1), 'mixed': Mesh(data=2, fsdp=2, tensor=2), 'fsdp': Mesh(data=1, fsdp=8)
}
batches = [made.train_input.get_next() for _ in range(4)]
directory = tempfile.mkdtemp()
losses = {}
for name, mesh in meshes.items():
    devices = jax.devices()[:1] if name == 'one' else jax.devices()
    program = program_for(made.task, mesh.make(devices), made.train_input.element_spec())
    values, key = program.values(made.task), program.random_key(0)
    if name == 'fsdp':  # Goes on where the run on the mixed mesh was after two steps.
        checkpoints = CheckpointStore(directory)
        state = checkpoints.restore(program.abstract_state).state
        checkpoints.close()
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), saved)
        assert jax.tree.map(lambda leaf: leaf.sharding, state) == jax.tree.map(
            lambda leaf: leaf.sharding, program.abstract_state
        )
        left = batches[2:]
    else:
        state, left = program.init(key, values), batches
    losses[name] = []
    for step, batch in enumerate(left):
        state, metrics = program.train_step(state, program.put(batch), key, values)
        losses[name].append(float(metrics['loss'].mean))
        if name == 'mixed' and step == 1:
            checkpoints = CheckpointStore(directory, RetentionPolicy(made.train.checkpoints))
            checkpoints.save(2, state, Progress())
            checkpoints.close()
            saved = jax.device_get(state)
    up = state.params['stack']['layers_0x2']['feed_forward']['up']
    kept = [
        leaf.sharding
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state['main'])
        if keys(path)[-1] == 'up' and leaf.shape == up.shape
    ]
    assert kept == [up.sharding], kept
    assert state.ema_params['embedding']['table'].sharding == (
        state.params['embedding']['table'].sharding
    )
print(json.dumps(losses))
"""


@pytest.mark.pax('TrainState', 'On another mesh', 'Adafactor')
@pytest.mark.slow
def test_state_of_all_kinds_is_sharded_saved_and_restored() -> None:
    printed = on_devices(_SCRIPT)
    losses = json.loads(printed.splitlines()[-1])
    np.testing.assert_allclose(losses['mixed'], losses['one'], rtol=1e-4)
    np.testing.assert_allclose(losses['fsdp'], losses['mixed'][2:], rtol=1e-4)
