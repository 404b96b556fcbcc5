"""Costs of an experiment without open decisions, known before its first step."""

import math
import statistics
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from trainer.experiment import Experiment
from trainer.inputs.base import Batch
from trainer.layers.embedding import Embedding
from trainer.mesh import Arrangement
from trainer.program.flops import flops
from trainer.program.setup import compiled, data_shard
from trainer.program.step_functions import ElementSpec, abstract_metrics, abstract_step, spec_key
from trainer.runtime import processes
from trainer.state import TrainState
from trainer.symbolic.code_key import code_key
from trainer.symbolic.component import components
from trainer.task import Task

COSTS = ('num_params', 'flops_per_token', 'state_bytes', 'device_memory_bytes')
"""Metrics that are known before training, and part of each report of a run."""

_WARM_UP, _TIMED = 2, 5
"""Numbers of steps. The first ones load the program, and are not timed."""

_TOKENS = ('ids', 'labels', 'encoder_ids')
"""Features of a batch that contain ids of a vocabulary."""

_static: dict[Hashable, dict[str, float]] = {}


def static_costs(experiment: Experiment, mesh: Arrangement | None = None) -> dict[str, float]:
    """Computes the costs that are equal on all devices, by the names of their metrics.

    The model is traced, once for each structure. Nothing is compiled, no data is read, and the
    mesh need not fit the devices.

    Args:
        experiment: without open decisions.
        mesh: checks the axes of activations, in any case; None checks none.

    Returns:
        num_params: number of parameters, frozen ones included.
        flops_per_token: operations of training on a token, or on an example if the task does not
            count tokens. Three times those of the loss, as the backward pass runs each product
            of the forward pass twice; recomputation is left out (Chowdhery et al. 2022,
            appendix B). A step of the task's own counts as it is. `trainer.program.flops` defines
            the counted operations.
        state_bytes: bytes of the train state: parameters, other variables of layers, state of the
            optimizer, averages. One copy counts, for any sharding.

    Raises:
        UserError: the parts of the model do not fit together, or an activation the mesh.
    """
    element_spec = experiment.train_input.element_spec()
    if mesh is not None and mesh.mesh.size > 1:  # It may enlarge the batch, and so the costs.
        return _traced(experiment.task, element_spec, mesh)
    identity = (code_key(experiment.task), spec_key(element_spec))
    if identity not in _static or mesh is not None:
        _static[identity] = _traced(experiment.task, element_spec, mesh)
    return dict(_static[identity])


def divisible(element_spec: ElementSpec, mesh: Arrangement) -> ElementSpec:
    """Enlarges batches that a mesh does not divide: one host may have a part of a batch."""
    parts = mesh.parts('batch')[0]
    return {
        name: s.update(shape=(math.lcm(s.shape[0], parts), *s.shape[1:]))
        for name, s in element_spec.items()
    }


def tokens_per_step(experiment: Experiment) -> float:
    """Number of tokens that each training step adds to `spent_tokens`.

    Returns:
        Tokens (examples, if the task does not count tokens) of a batch of all processes, padding
        included.

    Raises:
        UserError: there are several processes, and the mesh does not fit their devices.
    """
    batch: Any = experiment.train_input.padded_spec()
    return float(experiment.task.num_tokens(batch) * data_shard(experiment)[0])


def memory_cost(experiment: Experiment) -> dict[str, float]:
    """Memory that the train step needs on each device: state, batch and intermediate arrays.

    Waiting batches and evaluation need more. This compiles the step. Training in the same process
    uses the compiled step, and other processes find it in the compilation cache.

    Returns:
        device_memory_bytes: the compiler's figure for one device of the mesh.

    Raises:
        UserError: the mesh does not fit the devices, or the model or a batch the mesh.
    """
    program, _ = compiled(experiment)
    return {'device_memory_bytes': float(program.device_memory_bytes())}


def step_cost(
    experiment: Experiment, train_step: Callable[..., Any] | None = None
) -> dict[str, float]:
    """Measures the time of a train step on synthetic values.

    The compiled step of `memory_cost` runs a few times, each timed from dispatch to end. Training
    is at most that fast, and slower if its data is late. No data is read, nothing is written, and
    the state is discarded. All processes that train together must call this: each step needs all
    of them, with a round (`trainer.runtime.processes`) before it.

    Returns:
        step_seconds: the median of the steps, in the slowest process; the same in all processes.

    Raises:
        UserError: the mesh does not fit the devices, or the model or a batch the mesh.
    """
    program, values = compiled(experiment)
    train_step = train_step or program.train_step
    random_key = program.random_key(experiment.train.random_seed)
    batch = program.put(_synthetic_batch(experiment.task, experiment.train_input.padded_spec()))
    processes.agree()  # Now all processes are ready to begin.
    state = jax.block_until_ready(program.init(random_key, values))
    seconds = []
    for _ in range(_WARM_UP + _TIMED):
        processes.agree()  # A process alone in a step would wait forever.
        began = time.perf_counter()
        state, metrics = train_step(state, batch, random_key, values)
        jax.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - began)
    return {'step_seconds': max(processes.gather(statistics.median(seconds[_WARM_UP:])))}


def _synthetic_batch(task: Task, spec: ElementSpec) -> Batch:
    """A batch of ones, with uniform random token ids: equal ids would all wait for one row."""
    sizes = [each.vocab_size for each in components(task) if isinstance(each, Embedding)]
    rng, num_ids = np.random.default_rng(0), min(sizes, default=2)
    return {
        name: rng.integers(0, num_ids, s.shape).astype(s.dtype)
        if name in _TOKENS
        else np.ones(s.shape, s.dtype)
        for name, s in spec.items()
    }


def device_memory_limit() -> int | None:
    """Memory of a device that programs can use, in bytes; None if unknown (CPU)."""
    stats = jax.local_devices()[0].memory_stats()
    return None if stats is None else stats.get('bytes_limit')


def abstract_loss(
    task: Task, element_spec: ElementSpec, mesh: Arrangement | None = None
) -> tuple[Callable[..., Any], TrainState, tuple[Any, ...]]:
    """Makes a traceable function of the loss of a training step: see `abstract_metrics`."""
    metrics, state, args = abstract_metrics(task, element_spec, mesh)
    return lambda *given: metrics(*given)['loss'], state, args


def training_flops(forward_flops: int, num_tokens: int) -> float:
    """Operations of training on a token, from those of the loss of a batch."""
    return 3 * forward_flops / num_tokens


def own_flops(task: Task, element_spec: ElementSpec, mesh: Arrangement | None = None) -> int:
    """Operations of a step that a task replaces: of all its losses, gradients and updates."""
    train_step, given = abstract_step(task, element_spec, mesh)
    return flops(train_step, *given)


def _traced(task: Task, element_spec: ElementSpec, mesh: Arrangement | None) -> dict[str, float]:
    if mesh is not None:
        element_spec = divisible(element_spec, mesh)
    loss, state, args = abstract_loss(task, element_spec, mesh)
    tokens = task.num_tokens(args[1])
    return {
        'num_params': float(sum(leaf.size for leaf in jax.tree.leaves(state.params))),
        'flops_per_token': own_flops(task, element_spec, mesh) / tokens
        if task.has_own_step or task.compares(args[1])
        else training_flops(flops(loss, *args), tokens),
        'state_bytes': float(sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))),
    }
