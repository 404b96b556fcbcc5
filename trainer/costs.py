"""What an experiment costs, known before it trains a step."""

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp

from trainer.component import bind, components, key
from trainer.derived import resolve
from trainer.experiment import Experiment
from trainer.flops import flops
from trainer.layers.base import PARAMS, Run
from trainer.layers.heads import MultiHead
from trainer.passes import (
    ElementSpec,
    abstract_random_key,
    abstract_values,
    forward,
    init_variables,
)
from trainer.program import Values, spec_key
from trainer.setup import compiled, shares
from trainer.state import unboxed
from trainer.task import Task

COSTS = ('num_params', 'flops_per_token', 'device_memory_bytes')
"""The metrics that are known before training."""

_static: dict[Hashable, dict[str, float]] = {}


def static_costs(experiment: Experiment) -> dict[str, float]:
    """Costs that are the same on any device, by their names among the metrics.

    The model is traced, once for each structure: nothing is compiled, no data is read, and the
    mesh need not fit the devices.

    Args:
        experiment: every decision in it is made.

    Returns:
        num_params: parameters that are trained.
        flops_per_token: operations of training on a token (on an example, where the task does not
            count tokens): three times those of the loss, as the backward pass does each product
            of the forward pass twice; without what it computes again (Chowdhery et al. 2022,
            appendix B). See `trainer.flops` for what is counted.

    Raises:
        UserError: the model does not fit together.
    """
    experiment = resolve(experiment)
    element_spec = experiment.train_input.element_spec()
    identity = (key(experiment.task), spec_key(element_spec))
    if identity not in _static:
        _static[identity] = _traced(experiment.task, element_spec)
    return dict(_static[identity])


def tokens_per_step(experiment: Experiment) -> float:
    """What each training step adds to `spent_tokens`, on the devices of this process and others.

    Args:
        experiment: every decision in it is made.

    Returns:
        Tokens (examples, where the task does not count tokens) of a batch, padding included, of
        all processes together.

    Raises:
        UserError: of several processes, the mesh does not fit their devices.
    """
    experiment = resolve(experiment)
    batch: Any = experiment.train_input.padded_spec()
    return float(experiment.task.num_tokens(batch) * shares(experiment)[0])


def memory_cost(experiment: Experiment) -> dict[str, float]:
    """What the train step takes of each device's memory: state, batch and all in between.

    Batches that wait for their step, and what evaluation needs, come on top. Compiles the step:
    training in the same process runs what was compiled here, and other processes find it in the
    compilation cache.

    Args:
        experiment: every decision in it is made.

    Returns:
        device_memory_bytes: as the compiler reports it, for one device of the mesh.

    Raises:
        UserError: the mesh does not fit the devices, or the model or a batch the mesh.
    """
    program, _ = compiled(resolve(experiment))
    return {'device_memory_bytes': float(program.device_memory_bytes())}


def device_memory_limit() -> int | None:
    """Bytes that programs can have of a device's memory; None where it does not say (CPU)."""
    stats = jax.local_devices()[0].memory_stats()
    return None if stats is None else stats.get('bytes_limit')


def abstract_loss(
    task: Task, element_spec: ElementSpec
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The loss of a training step, to be traced.

    Returns:
        The function, and its arguments as shapes: variables, batch, random key, numbers.
    """
    task = task.clone(deep=True)
    for component in components(task):
        if isinstance(component, MultiHead):
            # A fused kernel does the same products, but is traced only where its device is.
            component.rebind(implementation='xla', raise_on_no_change=False)
    random_key, values = abstract_random_key(), abstract_values(task)
    batch: Any = dict(element_spec)

    def variables_of(random_key: jax.Array, values: Values) -> Any:
        return unboxed(init_variables(bind(task, values), element_spec, random_key))

    def loss(variables: Any, batch: Any, random_key: jax.Array, values: Values) -> Any:
        run = Run(training=True, dtype=jnp.dtype(task.fprop_dtype))
        rngs = {'dropout': random_key}
        return forward(bind(task, values), variables, batch, rngs, run)[0]['loss']

    variables = jax.eval_shape(variables_of, random_key, values)
    return loss, (variables, batch, random_key, values)


def training_flops(forward_flops: int, num_tokens: int) -> float:
    """Those of training on a token, of those of the loss of a batch."""
    return 3 * forward_flops / num_tokens


def _traced(task: Task, element_spec: ElementSpec) -> dict[str, float]:
    loss, (variables, batch, *rest) = abstract_loss(task, element_spec)
    forward_flops = flops(loss, variables, batch, *rest)
    return {
        'num_params': float(sum(leaf.size for leaf in jax.tree.leaves(variables[PARAMS]))),
        'flops_per_token': training_flops(forward_flops, task.num_tokens(batch)),
    }
