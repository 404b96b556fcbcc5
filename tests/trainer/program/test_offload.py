"""The state of the optimizer in the memory of the host."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.tiny import experiment
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.checkpoints.manifest import Progress
from trainer.program.offload import HOST, on_host
from trainer.program.setup import compiled, localized
from trainer.symbolic.errors import UserError


def trained(steps_at_once: int, **fields: Any) -> tuple[Any, Any, list[float]]:
    """The program, the state after four steps, and the losses of the last execution."""
    made = localized(experiment(**fields))
    program, values = compiled(made)
    state = program.init(program.random_key(0), values)
    step = program.train_steps(steps_at_once)
    for _ in range(4 // steps_at_once):
        batch = program.put(*(made.train_input.get_next() for _ in range(steps_at_once)))
        state, metrics = step(state, batch, program.random_key(0), values)
    return program, state, np.ravel(metrics['loss'].total).tolist()


def memories(state: Any) -> set[str]:
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim}


@pytest.mark.slow
@pytest.mark.parametrize('steps_at_once', [1, 2])
def test_an_offloaded_state_trains_as_one_on_the_device(steps_at_once: int, tmp_path: Any) -> None:
    _, wanted, losses = trained(steps_at_once)
    program, state, got = trained(steps_at_once, task__learner__offload_state=True)
    assert memories(wanted) == {jax.devices()[0].default_memory().kind} and memories(state) == {
        HOST
    }
    assert got == losses
    jax.tree.map(np.testing.assert_array_equal, state, wanted)
    store = CheckpointStore(str(tmp_path))
    store.save(4, state, Progress())
    store.close()
    reader = CheckpointStore(str(tmp_path))
    found = reader.restore(program.abstract_state)
    reader.close()
    assert found is not None
    restored = found.state
    assert memories(restored) == {HOST}
    jax.tree.map(np.testing.assert_array_equal, restored, wanted)


def test_a_device_without_memory_of_its_host_is_refused() -> None:
    memory = SimpleNamespace(kind='device')
    device = SimpleNamespace(device_kind='toy', addressable_memories=lambda: [memory])
    mesh = SimpleNamespace(devices=np.array([device]))
    state: Any = SimpleNamespace(opt_state={})
    with pytest.raises(
        UserError, match=r'task.learner.offload_state: .*\(toy\) .* Here are device'
    ):
        on_host(state, state, mesh)
