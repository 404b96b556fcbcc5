"""The state of the optimizer in the memory of the host, between two steps."""

import dataclasses
from typing import Any

import jax

from trainer.state import TrainState
from trainer.symbolic.errors import UserError

HOST = 'pinned_host'
"""The memory of the host that a device can read, as JAX names it."""


def on_host(shardings: TrainState, abstract: TrainState, mesh: Any) -> TrainState:
    """Shardings of a train state whose optimizer state is in the memory of the host.

    Numbers without axes, such as counts of steps, stay on the devices.

    Raises:
        UserError: the devices cannot read the memory of their host.
    """
    device = mesh.devices.flat[0]
    kinds = {each.kind for each in device.addressable_memories()}
    if HOST not in kinds:
        raise UserError(
            f'task.learner.offload_state: a device ({device.device_kind}) has {HOST!r} memory '
            f'where it reads that of its host. Here are {", ".join(sorted(kinds))}: set it to False'
        )

    def of_leaf(at: Any, leaf: Any) -> Any:
        return at.with_memory_kind(HOST) if leaf.ndim else at

    moved = jax.tree.map(of_leaf, shardings.opt_state, abstract.opt_state)
    return dataclasses.replace(shardings, opt_state=moved)


def moved(state: TrainState, space: Any) -> TrainState:
    """A state whose optimizer state is in another `jax.memory.Space`, in a traced step."""
    opt_state = jax.tree.map(
        lambda leaf: jax.device_put(leaf, space) if leaf.ndim else leaf, state.opt_state
    )
    return dataclasses.replace(state, opt_state=opt_state)
