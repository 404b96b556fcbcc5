"""Losses in chunks on 8 simulated devices, and of packed runs, in a process of their own."""

import json

import numpy as np
import pytest

from tests.servers.processes import on_devices

_SCRIPT = """
import json
import jax
from benchmarks.loss_memory import large_collectives
from tests.factories.tiny import LENGTH, VOCAB, experiment, model
from trainer.layers import Linear
from trainer.mesh import Mesh
from trainer.program.program import memory_bytes, program_for, stacked
from trainer.program.setup import localized
from trainer.state import without_frozen

def begun(name, mesh, count):
    head = Linear(VOCAB, axes=['embed', 'vocab']) if name == 'untied' else None
    task = {'task.model': model(head=head, logits_cap=5.0), 'task.loss_chunks': count}
    task |= {'task.loss.label_smoothing': 0.1, 'train_input.batch_size': 16}
    task |= {'task.learner.microbatches': 2 if name == 'accumulated' else 1}
    made = localized(experiment().rebind(task))
    devices = jax.devices()[: 1 if mesh is None else 8]
    at = (mesh or Mesh(data=1)).make(devices)
    program = program_for(made.task, at, made.train_input.element_spec())
    return made, program, program.values(made.task), program.random_key(0)

def losses(name, mesh, count):
    made, program, values, key = begun(name, mesh, count)
    state, found = program.init(key, values), []
    for _ in range(5):
        batch = program.put(made.train_input.get_next())
        state, metrics = program.train_step(state, batch, key, values)
        found += [float(metrics[each].mean) for each in ('loss', 'log_pplx', 'accuracy')]
    if count > 1:
        text = program.train_steps(1).as_text()
        # The table is gathered, and its gradient summed, once. Shards of `tensor` are as small as
        # the gradients of activations, and microbatches are a loop.
        if name in ('data', 'untied', 'sequence'):
            assert large_collectives(text, VOCAB * 16 // 2)[0] == 0, name
    return found

meshes = {
    'data': Mesh(data=8), 'untied': Mesh(data=2, fsdp=2, tensor=2),
    'tensor': Mesh(data=4, tensor=2),
    'sequence': Mesh(data=2, sequence=4), 'experts': Mesh(data=2, expert=2, tensor=2),
    'accumulated': Mesh(data=2, fsdp=2, sequence=2),
}
out = {}
for name, mesh in meshes.items():
    wanted = losses(name, None, 1)
    out[name] = [wanted, losses(name, mesh, 3)]

made, program, values, key = begun('packed', None, 3)
batches = [program.put(made.train_input.get_next()) for _ in range(2)]
keys = [program.random_key(seed) for seed in (1, 2)]
states = [program.init(each, values) for each in keys]
packed = program.packed_step(2)
both = stacked([without_frozen(each) for each in states])
_, got = packed(both, {}, tuple(batches), tuple(keys), (values, values))
alone = [
    program.train_step(state, batch, each, values)[1]
    for state, batch, each in zip(states, batches, keys)
]
out['packed'] = [[float(m['loss'].mean) for m in each] for each in (alone, got)]
print(json.dumps(out))
"""


@pytest.mark.slow(reason='Compiles twelve train steps.')
def test_losses_in_chunks_are_those_of_one_device() -> None:
    for name, (wanted, got) in json.loads(on_devices(_SCRIPT)).items():
        np.testing.assert_allclose(got, wanted, rtol=1e-5, err_msg=name)
