"""Image models on 8 simulated devices, in their own process."""

import json
from typing import Any

import numpy as np
import pytest

from tests.servers.processes import on_devices

pytestmark = pytest.mark.slow

_SCRIPT = """
import json
import jax
import numpy as np
from tests.conformance.layer_examples import OfLinen, OfNnx, resnet
from tests.factories.tiny_images import experiment
from trainer.mesh import Mesh
from trainer.program.program import program_for
from trainer.program.setup import localized

meshes = {'one device': Mesh(data=1), 'mixed': Mesh(data=2, fsdp=2, tensor=2)}
out = {}
for kind, model in {'resnet': resnet(), 'linen': OfLinen(), 'nnx': OfNnx()}.items():
    for name, mesh in meshes.items():
        made = localized(experiment(model.clone(deep=True)))
        devices = jax.devices()[: 1 if name == 'one device' else 8]
        program = program_for(made.task, mesh.make(devices), made.train_input.element_spec())
        values, key = program.values(made.task), program.random_key(0)
        state, losses = program.init(key, values), []
        for _ in range(3):
            batch = made.train_input.get_next()
            batch['weights'][6:] = 0  # Half of what one of the devices has is padding.
            state, metrics = program.train_step(state, program.put(batch), key, values)
            losses.append(float(metrics['loss'].mean))
        variables = jax.device_get(state.non_trainable)
        kept = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(variables)])
        biggest = max(jax.tree.leaves(state.params), key=lambda leaf: leaf.size)
        part = biggest.addressable_shards[0].data.size / biggest.size
        out[f'{kind}, {name}'] = {'losses': losses, 'kept': kept.tolist(), 'part': part}
print(json.dumps(out))
"""


@pytest.fixture(scope='module')
def runs() -> Any:
    printed = on_devices(_SCRIPT)
    return json.loads(printed)


@pytest.mark.parametrize('kind', ['resnet', 'linen', 'nnx'])
def test_many_devices_give_the_losses_of_one(runs: Any, kind: str) -> None:
    alone, together = runs[f'{kind}, one device'], runs[f'{kind}, mixed']
    np.testing.assert_allclose(together['losses'], alone['losses'], rtol=1e-4)


@pytest.mark.pax('Variables that are not', '… REQUIRES_MEAN_SYNC, REQUIRES_SUM_SYNC')
@pytest.mark.pax('Statistics of `BatchNorm`')
@pytest.mark.parametrize('kind', ['resnet', 'linen', 'nnx'])
def test_statistics_of_batch_normalization_are_those_of_the_whole_batch(
    runs: Any, kind: str
) -> None:
    alone, together = runs[f'{kind}, one device'], runs[f'{kind}, mixed']
    np.testing.assert_allclose(together['kept'], alone['kept'], rtol=1e-4, atol=1e-6)
    assert np.std(alone['kept']) > 0.01


def test_parameters_are_divided_by_their_axes(runs: Any) -> None:
    parts = {kind: runs[f'{kind}, mixed']['part'] for kind in ('resnet', 'linen', 'nnx')}
    # Kernels: over fsdp and tensor; over tensor, by its axes; over both again.
    assert parts == {'resnet': 1 / 4, 'linen': 1 / 2, 'nnx': 1 / 4}
