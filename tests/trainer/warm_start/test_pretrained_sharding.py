"""Weights of a Hugging Face directory on meshes of 8 simulated devices."""

import json

import pytest

from tests.servers.processes import on_devices

pytestmark = pytest.mark.slow

_SCRIPT = """
import json
import jax
import numpy as np
from tests.factories.loaded import loaded
from tests.factories.pretrained import directory
from tests.factories.tiny import experiment
from trainer.mesh import Mesh
from trainer.pretrained.families import model_of
from trainer.program.program import program_for
from trainer.program.setup import localized
from trainer.symbolic.errors import UserError
from trainer.warm_start.warm_start import WarmStartLoader, warm_start_sources
from trainer.warm_start_rules import Pretrained

meshes = {
    'fsdp': Mesh(data=1, fsdp=8), 'tensor': Mesh(data=4, tensor=2),
    'mixed': Mesh(data=2, fsdp=2, tensor=2), 'experts': Mesh(data=2, expert=4),
    'heads': Mesh(data=2, tensor=4),
    'whole heads': Mesh(data=2, tensor=4, rules={'heads': None}),
}
out = {}
for fixture in ('llama_2', 'mixtral'):
    start = Pretrained(str(directory(fixture)))
    model = model_of(start.directory).rebind({'stack.scan': 'always'})
    wanted = jax.device_get(loaded(start, model, np.zeros((1, 4), np.int32)))
    made = localized(experiment(task__model=model, train__init_from_checkpoint=start))
    for name, mesh in meshes.items():
        try:
            program = program_for(made.task, mesh.make(), made.train_input.element_spec())
            loader = WarmStartLoader(made, warm_start_sources(made, '/nowhere'), program)
            key = program.random_key(0)
            params = loader.load(key, program.values(made.task)).params
        except UserError as error:
            out[f'{fixture} {name}'] = str(error)
            continue
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), wanted)
        kernels = params['stack']['layers_0x2']
        up = kernels['feed_forward']['up']
        query = kernels['attention']['query']
        out[f'{fixture} {name}'] = [
            up.size // up.addressable_shards[0].data.size,
            query.size // query.addressable_shards[0].data.size,
        ]
print(json.dumps(out))
"""


def test_each_device_has_its_part_of_the_weights() -> None:
    found = json.loads(on_devices(_SCRIPT))
    refused = [found.pop(f'{fixture} heads') for fixture in ('llama_2', 'mixtral')]
    assert all("axis 'heads' of size 2" in text for text in refused)
    assert all("mesh.rules={'heads': None}" in text for text in refused)
    assert found == {
        'llama_2 fsdp': [8, 8],
        'llama_2 tensor': [2, 2],
        'llama_2 mixed': [4, 4],
        'llama_2 experts': [1, 1],
        'llama_2 whole heads': [4, 1],
        'mixtral fsdp': [8, 8],
        'mixtral tensor': [2, 2],
        'mixtral mixed': [4, 4],
        'mixtral experts': [4, 1],
        'mixtral whole heads': [4, 1],
    }
