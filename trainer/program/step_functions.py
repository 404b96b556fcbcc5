"""Step functions of a task, to be traced with bound numbers and abstract batches."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from trainer import state as state_lib
from trainer.decoding.base import DecodeOutput
from trainer.layers.base import (
    AUX_LOSS,
    NON_TRAINABLE,
    PARAMS,
    SUMMARIES,
    ForwardContext,
    forward_context,
)
from trainer.layers.stack import per_layer
from trainer.learner.width_scaling import WidthFactors
from trainer.metrics import Metrics, WeightedScalar, joined
from trainer.state import TrainState
from trainer.symbolic.component import bind, numbers
from trainer.task import Task
from trainer.tasks.tokens import TokenTask

ElementSpec = Mapping[str, jax.ShapeDtypeStruct]
Values = dict[str, jax.Array]


def init_variables(task: Task, element_spec: ElementSpec, random_key: jax.Array) -> Any:
    """Initializes the variables of a task with bound numbers, in boxes with metadata."""
    zeros = {name: jnp.zeros(s.shape, s.dtype) for name, s in element_spec.items()}
    with forward_context(ForwardContext()):
        variables = task.model.module().init(
            {'params': jax.random.fold_in(random_key, 0)}, *task.model_inputs(zeros)
        )
    return {name: variables.get(name, {}) for name in (PARAMS, NON_TRAINABLE)}


def width_factors(task: Task, element_spec: ElementSpec) -> WidthFactors | None:
    """The factors of the parameters of a task with width scaling; None without.

    Raises:
        UserError: the base of the scaling does not fit the model.
    """
    scaling = task.learner.width_scaling
    if scaling is None:
        return None

    def abstract_params(task: Task) -> Any:
        def drawn(random_key: jax.Array, values: Any) -> Any:
            return init_variables(bind(task, values), element_spec, random_key)

        return jax.eval_shape(drawn, abstract_random_key(), abstract_values(task))[PARAMS]

    base = scaling.base_of(task)
    return scaling.factors(task.model, abstract_params(task), abstract_params(base))


def init_state(
    task: Task, boxed: Any, filled: Callable[[str, Any], Any] = lambda _, drawn: drawn
) -> TrainState:
    """Makes the initial train state of a run, by a task with bound numbers.

    Args:
        boxed: result of `init_variables`.
        filled: (PARAMS, initialized parameters) -> parameters to use instead.
    """
    variables = state_lib.unboxed(boxed)
    params = filled(PARAMS, variables[PARAMS])
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        non_trainable=variables[NON_TRAINABLE],
        opt_state=task.learner.init(params, state_lib.decay_mask(boxed[PARAMS])),
        ema_params=task.learner.init_ema(params),
    )


def forward(
    task: Task, variables: Any, batch: Any, rngs: Any, context: ForwardContext
) -> tuple[Metrics, Any]:
    """Runs the forward pass of a task with bound numbers.

    Returns:
        The metrics of the batch; the updated variables of layers that are not trained.
    """
    outputs: Any
    mutable = [AUX_LOSS, *([SUMMARIES, NON_TRAINABLE] if context.training else [])]
    with forward_context(dataclasses.replace(context, example_weights=task.example_weights(batch))):
        outputs, left = task.model.module().apply(
            variables, *task.model_inputs(batch), rngs=rngs, mutable=mutable
        )
    metrics = task.measure(outputs, batch)
    one = jnp.ones((), jnp.float32)
    if losses := jax.tree.leaves(left.get(AUX_LOSS, {})):
        aux_loss = sum(jnp.sum(loss) for loss in losses)
        loss = metrics['loss']
        metrics['loss'] = loss.replace(total=loss.total + aux_loss * loss.weight)
        metrics = joined(metrics, {'aux_loss': WeightedScalar(aux_loss, one)})
    for path, value in jax.tree_util.tree_leaves_with_path(per_layer(left.get(SUMMARIES, {}))):
        name = jax.tree_util.keystr(path, simple=True, separator='/')
        metrics[f'{SUMMARIES}/{name}'] = WeightedScalar(value, one)
    return metrics, left.get(NON_TRAINABLE, variables.get(NON_TRAINABLE, {}))


def score(task: Task, variables: Any, batch: Any, context: ForwardContext) -> jax.Array:
    """Log-probability of the labels of each row [B], under a task with bound numbers."""
    assert isinstance(task, TokenTask)
    with forward_context(context):
        outputs: Any = task.model.module().apply(variables, *task.model_inputs(batch))
    return task.scores(outputs, batch)


def decode(
    task: Task, variables: Any, batch: Any, random_key: jax.Array, context: ForwardContext
) -> DecodeOutput:
    """Decodes continuations of the prompts of a batch, by a task with bound numbers."""
    assert isinstance(task, TokenTask) and task.decoder is not None
    prompts = task.prompts(batch)
    length = prompts.ids_BP.shape[1] + task.decoder.max_decode_steps
    extend = task.extender(variables, batch, dataclasses.replace(context, cache_length=length))
    return DecodeOutput(
        dict(batch), prompts.lengths_B, task.decoder.decode(extend, prompts, random_key)
    )


def abstract_values(task: Task) -> Any:
    """Shapes and dtypes of the numbers of a task, weakly typed like the numbers."""
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, numbers(task)))


def abstract_random_key() -> Any:
    """Shape and dtype of a random key."""
    return jax.eval_shape(lambda: jax.random.key(0))
