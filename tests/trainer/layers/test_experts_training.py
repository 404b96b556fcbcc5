"""Mixtures of experts in training: on meshes of 8 simulated devices, and as candidates."""

import json
from pathlib import Path

import numpy as np
import pyglove as pg
import pytest

from paxtune import tune
from paxtune.algorithms import Grid
from tests.factories.tiny import experiment
from tests.factories.tunables import Rates
from tests.servers.processes import on_devices
from trainer.inspect import layout
from trainer.layers import Experts, FeedForward, Router
from trainer.mesh import Mesh
from trainer.symbolic.errors import UserError

FEED_FORWARD = 'task.model.stack.layers[0].feed_forward'

_SCRIPT = """
import json
import jax
from tests.factories.tiny import experiment
from trainer.layers import Attention, Experts, FeedForward, TransformerBlock
from trainer.learner import Learner, Muon
from trainer.mesh import Mesh
from trainer.program.program import program_for
from trainer.program.setup import localized

losses = {}
for factor in (None, 1.0):
    layer = Experts(4, 16, capacity_factor=factor, shared=FeedForward(8))
    block = TransformerBlock(Attention(2), layer)
    made = localized(
        experiment(
            task__model__stack__layers=[block], task__learner=Learner(0.02, optimizer=Muon())
        )
    )
    batches = [made.train_input.get_next() for _ in range(4)]
    for name, mesh in {
        'one': Mesh(data=1),
        'mixed': Mesh(data=2, fsdp=2, tensor=2),
        'experts': Mesh(data=2, expert=4),
    }.items():
        devices = jax.devices()[:1] if name == 'one' else jax.devices()
        program = program_for(made.task, mesh.make(devices), made.train_input.element_spec())
        values, key = program.values(made.task), program.random_key(0)
        state, of_mesh = program.init(key, values), []
        for batch in batches:
            state, metrics = program.train_step(state, program.put(batch), key, values)
            of_mesh.append([float(metrics[name].mean) for name in ('loss', 'aux_loss')])
        losses[f'{name} {factor}'] = of_mesh
    up = state.params['stack']['layers_0']['feed_forward']['up']
    assert up.sharding.shard_shape(up.shape)[0] == 1, up.sharding
print(json.dumps(losses))
"""


@pytest.mark.slow
def test_tokens_have_the_same_experts_on_one_device_and_on_eight() -> None:
    losses = json.loads(on_devices(_SCRIPT).splitlines()[-1])
    for factor in (None, 1.0):
        for name in ('mixed', 'experts'):
            np.testing.assert_allclose(
                losses[f'{name} {factor}'], losses[f'one {factor}'], rtol=1e-4
            )


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
