"""What an experiment costs, known before it trains a step."""

import statistics
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.experiment import Experiment
from trainer.inputs.base import Batch
from trainer.layers.base import NON_TRAINABLE, PARAMS, ForwardContext
from trainer.layers.embedding import Embedding
from trainer.layers.heads import MultiHead
from trainer.program.flops import flops
from trainer.program.program import Values, spec_key
from trainer.program.setup import compiled, data_shard
from trainer.program.step_functions import (
    ElementSpec,
    abstract_random_key,
    abstract_values,
    forward,
    init_state,
    init_variables,
)
from trainer.runtime import processes
from trainer.state import TrainState
from trainer.symbolic.component import bind, components, key
from trainer.task import Task

COSTS = ('num_params', 'flops_per_token', 'state_bytes', 'device_memory_bytes')
"""The metrics that are known before training, and stand in each measurement of a run."""

_WARM_UP, _TIMED = 2, 5
"""Steps: the first ones load the program, and are not timed."""

_TOKENS = ('ids', 'labels', 'encoder_ids')
"""The features of a batch that hold ids of a vocabulary."""

_static: dict[Hashable, dict[str, float]] = {}


def static_costs(experiment: Experiment) -> dict[str, float]:
    """Costs that are the same on any device, by their names among the metrics.

    The model is traced, once for each structure: nothing is compiled, no data is read, and the
    mesh need not fit the devices.

    Args:
        experiment: without open decisions and derived values.

    Returns:
        num_params: parameters that are trained.
        flops_per_token: operations of training on a token (on an example, where the task does not
            count tokens): three times those of the loss, as the backward pass does each product
            of the forward pass twice; without what it computes again (Chowdhery et al. 2022,
            appendix B). See `trainer.program.flops` for what is counted.
        state_bytes: of the train state: parameters, what layers keep besides, the optimizer's
            state, and averages. One copy of it, however the mesh divides or repeats it.

    Raises:
        UserError: the model does not fit together.
    """
    element_spec = experiment.train_input.element_spec()
    identity = (key(experiment.task), spec_key(element_spec))
    if identity not in _static:
        _static[identity] = _traced(experiment.task, element_spec)
    return dict(_static[identity])


def tokens_per_step(experiment: Experiment) -> float:
    """What each training step adds to `spent_tokens`, on the devices of this process and others.

    Args:
        experiment: without open decisions and derived values.

    Returns:
        Tokens (examples, where the task does not count tokens) of a batch, padding included, of
        all processes together.

    Raises:
        UserError: of several processes, the mesh does not fit their devices.
    """
    batch: Any = experiment.train_input.padded_spec()
    return float(experiment.task.num_tokens(batch) * data_shard(experiment)[0])


def memory_cost(experiment: Experiment) -> dict[str, float]:
    """What the train step takes of each device's memory: state, batch and all in between.

    Batches that wait for their step, and what evaluation needs, come on top. Compiles the step:
    training in the same process runs what was compiled here, and other processes find it in the
    compilation cache.

    Args:
        experiment: without open decisions and derived values.

    Returns:
        device_memory_bytes: as the compiler reports it, for one device of the mesh.

    Raises:
        UserError: the mesh does not fit the devices, or the model or a batch the mesh.
    """
    program, _ = compiled(experiment)
    return {'device_memory_bytes': float(program.device_memory_bytes())}


def step_cost(experiment: Experiment) -> dict[str, float]:
    """How long a train step takes, measured on values that are made up.

    The same compiled step as of `memory_cost` is done a few times, each from its dispatch to its
    end. Training is no faster, and slower where its data is late. No data is read, nothing is
    written, and the state that was changed is let go. All processes that train together must call
    this: a step is done by all of them, with a round (`trainer.runtime.processes`) before each.

    Args:
        experiment: without open decisions and derived values.

    Returns:
        step_seconds: the median of the steps, in the slowest process; the same in all of them.

    Raises:
        UserError: the mesh does not fit the devices, or the model or a batch the mesh.
    """
    program, values = compiled(experiment)
    random_key = program.random_key(experiment.train.random_seed)
    batch = program.put(_made_up(experiment.task, experiment.train_input.padded_spec()))
    train_step = program.train_step
    processes.agree()  # Now all have what they need to begin.
    state = jax.block_until_ready(program.init(random_key, values))
    seconds = []
    for _ in range(_WARM_UP + _TIMED):
        processes.agree()  # No process can be alone in a step, where it would wait for ever.
        began = time.perf_counter()
        state, metrics = train_step(state, batch, random_key, values)
        jax.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - began)
    return {'step_seconds': max(processes.gather(statistics.median(seconds[_WARM_UP:])))}


def _made_up(task: Task, spec: ElementSpec) -> Batch:
    """A batch of ones, with token ids drawn uniformly: equal ones would all wait for one row."""
    sizes = [each.vocab_size for each in components(task) if isinstance(each, Embedding)]
    rng, num_ids = np.random.default_rng(0), min(sizes, default=2)
    return {
        name: rng.integers(0, num_ids, s.shape).astype(s.dtype)
        if name in _TOKENS
        else np.ones(s.shape, s.dtype)
        for name, s in spec.items()
    }


def device_memory_limit() -> int | None:
    """Bytes that programs can have of a device's memory; None where it does not say (CPU)."""
    stats = jax.local_devices()[0].memory_stats()
    return None if stats is None else stats.get('bytes_limit')


def abstract_loss(
    task: Task, element_spec: ElementSpec
) -> tuple[Callable[..., Any], TrainState, tuple[Any, ...]]:
    """The loss of a training step, to be traced.

    Returns:
        The function; a new train state, as shapes; and the function's arguments, as shapes:
        variables, batch, random key, numbers.
    """
    path = task.sym_path
    task = task.clone(deep=True)
    task.sym_setpath(path)  # Where messages say that something does not fit.
    for component in components(task):
        if isinstance(component, MultiHead):
            # A fused kernel does the same products, but is traced only where its device is.
            component.rebind(implementation='xla', raise_on_no_change=False)
    random_key, values = abstract_random_key(), abstract_values(task)
    batch: Any = dict(element_spec)

    def state_of(random_key: jax.Array, values: Values) -> TrainState:
        bound = bind(task, values)
        return init_state(bound, init_variables(bound, element_spec, random_key))

    def loss(variables: Any, batch: Any, random_key: jax.Array, values: Values) -> Any:
        context = ForwardContext(training=True, dtype=jnp.dtype(task.fprop_dtype))
        rngs = {'dropout': random_key}
        return forward(bind(task, values), variables, batch, rngs, context)[0]['loss']

    state = jax.eval_shape(state_of, random_key, values)
    variables = {PARAMS: state.params, NON_TRAINABLE: state.non_trainable}
    return loss, state, (variables, batch, random_key, values)


def training_flops(forward_flops: int, num_tokens: int) -> float:
    """Those of training on a token, of those of the loss of a batch."""
    return 3 * forward_flops / num_tokens


def _traced(task: Task, element_spec: ElementSpec) -> dict[str, float]:
    loss, state, args = abstract_loss(task, element_spec)
    return {
        'num_params': float(sum(leaf.size for leaf in jax.tree.leaves(state.params))),
        'flops_per_token': training_flops(flops(loss, *args), task.num_tokens(args[1])),
        'state_bytes': float(sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))),
    }
