"""Packed runs on meshes of 8 simulated devices, in a process of their own."""

import json

import numpy as np
import pytest

from tests.servers.processes import on_devices

pytestmark = pytest.mark.slow

_SCRIPT = """
import json
import jax
from tests.factories.tiny import experiment, model
from trainer.layers import Attention, Embedding, GatedFeedForward
from trainer.layers import Stack, TransformerBlock, TransformerLm
from trainer.mesh import Mesh
from trainer.program.packing.packing import Pack, PackedRun
from trainer.program.setup import compiled, localized

block = TransformerBlock(Attention(4), GatedFeedForward(32))
model = TransformerLm(Embedding(32, 16), Stack([block], repeats=2, scan='always'))
out = {}
for name, mesh in {
    'data': Mesh(data=8), 'fsdp': Mesh(data=2, fsdp=4), 'tensor': Mesh(data=2, fsdp=2, tensor=2),
    'sequence': Mesh(data=2, sequence=4),
}.items():
    found = {}
    for kind in ('packed', 'alone'):
        runs, inputs = [], []
        for row in range(2):
            made = experiment(task__model=model.clone(deep=True), mesh=mesh)
            made.rebind({'train_input.batch_size': 16, 'eval_inputs.eval.batch_size': 16})
            made.rebind({'task.learner.learning_rate': 0.01 * (row + 1)})
            made = localized(made)
            program, values = compiled(made)
            key = program.random_key(row)
            runs.append(PackedRun(row, program, program.init(key, values), key, values))
            inputs.append(made.train_input)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, runs[0].state)
        pack, losses = Pack(program, 2, 'always'), []
        for _ in range(4):
            batches = [program.put(each.get_next()) for each in inputs]
            if kind == 'packed':
                metrics = pack.step(runs, batches)
            else:
                metrics = [pack.step([run], [batch])[0] for run, batch in zip(runs, batches)]
            losses.append([float(each['loss'].mean) for each in metrics])
            jax.block_until_ready(runs[0].state)
        found[kind] = losses
        found['stays'] = jax.tree.all(
            jax.tree.map(
                lambda x, at: x.sharding.is_equivalent_to(at, x.ndim), runs[0].state, shardings
            )
        )
    out[name] = found
print(json.dumps(out))
"""


def test_packed_runs_on_any_mesh_have_the_losses_of_runs_alone() -> None:
    found = json.loads(on_devices(_SCRIPT).splitlines()[-1])
    assert set(found) == {'data', 'fsdp', 'tensor', 'sequence'}
    for name, each in found.items():
        assert each['stays'], name
        np.testing.assert_allclose(each['packed'], each['alone'], rtol=1e-4, err_msg=name)
