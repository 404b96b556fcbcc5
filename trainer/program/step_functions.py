"""Step functions of a task, to be traced with abstract batches and bound numbers.

`TracedSteps` takes the numbers as arguments, and binds them.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging
from jax.sharding import PartitionSpec

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
from trainer.layers.heads import MultiHead
from trainer.layers.stack import per_layer
from trainer.learner.paths import replaced
from trainer.learner.width_scaling import WidthFactors
from trainer.mesh import Arrangement
from trainer.metrics import Metrics, WeightedScalar, joined, require_metric
from trainer.state import TrainState
from trainer.symbolic.component import bind, components, numbers
from trainer.symbolic.errors import UserError
from trainer.task import Task
from trainer.tasks.tokens import TokenTask

ElementSpec = Mapping[str, jax.ShapeDtypeStruct]
Values = dict[str, jax.Array]
Fill = Callable[[str, Any, Any, Any], Any]

_ROUNDED = (
    'task.model: its outputs are bfloat16, so the loss and the metrics see rounded values. Let the '
    "last product be in float32: `self.head.call('logits', x)` of a Linear layer, "
    '`dtype=jnp.float32` of the last layer of a flax module.'
)


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

    boxes, base = (abstract_params(each, element_spec) for each in (task, scaling.base_of(task)))
    return scaling.factors(task.model, boxes, base)


def abstract_params(task: Task, element_spec: ElementSpec) -> Any:
    """Shapes of the parameters of a task, in boxes with metadata."""
    task = _without_kernels(task)

    def drawn(random_key: jax.Array, values: Any) -> Any:
        return init_variables(bind(task, values), element_spec, random_key)

    return jax.eval_shape(drawn, abstract_random_key(), abstract_values(task))[PARAMS]


def init_state(
    task: Task, boxed: Any, filled: Callable[[str, Any], Any] = lambda _, drawn: drawn
) -> TrainState:
    """Makes the initial train state of a run, by a task with bound numbers.

    Args:
        boxed: result of `init_variables`.
        filled: (PARAMS, initialized parameters) -> parameters to use instead.
    """
    variables = state_lib.unboxed(boxed)
    params, boxes = filled(PARAMS, variables[PARAMS]), boxed[PARAMS]
    masks = state_lib.decay_mask(boxes), state_lib.matrices(boxes)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        non_trainable=variables[NON_TRAINABLE],
        opt_state=task.learner.init(params, *masks),
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
    if any(each.dtype == jnp.bfloat16 for each in jax.tree.leaves(outputs)):
        logging.log_first_n(logging.WARNING, _ROUNDED, 1)
    metrics = _required(task, task.measure(outputs, batch))
    one = jnp.ones((), jnp.float32)
    if losses := jax.tree.leaves(left.get(AUX_LOSS, {})):
        aux_loss = sum(jnp.sum(loss) for loss in losses)
        if context.training:  # A reward of evaluation measures the model, not its training.
            loss = metrics['loss']
            metrics['loss'] = loss.replace(total=loss.total + aux_loss * loss.weight)
        metrics = joined(metrics, {'aux_loss': WeightedScalar(aux_loss, one)})
    for path, value in jax.tree_util.tree_leaves_with_path(per_layer(left.get(SUMMARIES, {}))):
        name = jax.tree_util.keystr(path, simple=True, separator='/')
        metrics[f'{SUMMARIES}/{name}'] = WeightedScalar(value, one)
    return metrics, left.get(NON_TRAINABLE, variables.get(NON_TRAINABLE, {}))


def _required(task: Task, metrics: Any) -> Metrics:
    """Returns the metrics of a task; raises UserError unless they are metrics, with a loss."""
    name = f'{task.sym_path or "task"}: {type(task).__name__}.measure'
    if not isinstance(metrics, Mapping):
        raise UserError(f'{name} must return metrics by name, not {type(metrics).__name__}')
    for each, metric in metrics.items():
        require_metric(metric, f'{name} returns {each!r}: it')
    if not isinstance(metrics.get('loss'), WeightedScalar):
        found = ', '.join(metrics) or 'no metrics'
        raise UserError(
            f"{name} returns {found}: it needs 'loss', a WeightedScalar, which training minimizes"
        )
    return dict(metrics)


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


def spec_key(element_spec: ElementSpec) -> Hashable:
    """Key that is equal for batches of equal shapes and dtypes."""
    return tuple((name, s.shape, str(s.dtype)) for name, s in sorted(element_spec.items()))


def _without_kernels(task: Task) -> Task:
    """A copy without fused kernels: they have the same products, but trace only on their device."""
    path = task.sym_path
    task = task.clone(deep=True)
    task.sym_setpath(path)  # For error messages.
    for component in components(task):
        if isinstance(component, MultiHead):
            component.rebind(implementation='xla', raise_on_no_change=False)
    return task


def abstract_metrics(
    task: Task, element_spec: ElementSpec, mesh: Arrangement | None = None
) -> tuple[Callable[..., Metrics], TrainState, tuple[Any, ...]]:
    """Makes a traceable function of the metrics of a batch.

    Args:
        mesh: checks the axes of activations; None checks none.

    Returns:
        The function; the shapes of a train state; the shapes of the arguments of the function for
        a training batch: variables, batch, random key, numbers. With `training=False` it
        evaluates.
    """
    task = _without_kernels(task)
    random_key, values = abstract_random_key(), abstract_values(task)
    batch: Any = dict(element_spec)

    def state_of(random_key: jax.Array, values: Values) -> TrainState:
        bound = bind(task, values)
        return init_state(bound, init_variables(bound, element_spec, random_key))

    def metrics(
        variables: Any, batch: Any, random_key: jax.Array, values: Values, training: bool = True
    ) -> Metrics:
        context = ForwardContext(training=training, dtype=jnp.dtype(task.fprop_dtype), mesh=mesh)
        rngs = {'dropout': random_key} if training else {}
        return forward(bind(task, values), variables, batch, rngs, context)[0]

    state = jax.eval_shape(state_of, random_key, values)
    variables = {PARAMS: state.params, NON_TRAINABLE: state.non_trainable}
    return metrics, state, (variables, batch, random_key, values)


def abstract_outputs(task: Task, element_spec: ElementSpec) -> Any:
    """Shapes of the outputs of a model in evaluation."""
    _, _, (variables, batch, _, values) = abstract_metrics(task, element_spec)

    def outputs(variables: Any, batch: Any, values: Values) -> Any:
        bound = bind(task, values)
        with forward_context(ForwardContext(dtype=jnp.dtype(task.fprop_dtype))):
            return bound.model.module().apply(variables, *bound.model_inputs(batch))

    return jax.eval_shape(outputs, variables, batch, values)


class Scores(NamedTuple):
    """Log-probabilities of the targets of a batch, on all hosts.

    Attributes:
        example_ids_B: numbers of the examples; 0 for padding.
        log_probs_B: log-probabilities of their targets, in nats.
    """

    example_ids_B: jax.Array
    log_probs_B: jax.Array


class TracedSteps:
    """Functions of a task on a mesh; the numbers of the task are arguments.

    Attributes:
        abstract_params: shapes of the parameters, in boxes with metadata.
        abstract_state: shapes of the train state.
    """

    def __init__(self, task: Task, mesh: Arrangement, element_spec: ElementSpec) -> None:
        self._task, self._mesh = task, mesh  # Unbound: read numbers from the result of `bind`.
        self._element_spec = element_spec
        self._width_factors = width_factors(task, element_spec)
        given = abstract_random_key(), abstract_values(task)
        boxed, self.abstract_state = jax.eval_shape(self._boxed_and_init, *given)
        self.abstract_params = boxed[PARAMS]
        self._decay_mask = state_lib.decay_mask(self.abstract_params)
        self._matrices = state_lib.matrices(self.abstract_params)

    def _init_variables(self, random_key: jax.Array, values: Values) -> Any:
        variables = init_variables(bind(self._task, values), self._element_spec, random_key)
        return variables if self._width_factors is None else self._width_factors.scaled(variables)

    def _boxed_and_init(self, random_key: jax.Array, values: Values) -> tuple[Any, TrainState]:
        boxed = self._init_variables(random_key, values)
        return boxed, init_state(bind(self._task, values), boxed)

    def init(self, random_key: jax.Array, values: Values) -> TrainState:
        return self._boxed_and_init(random_key, values)[1]

    def init_from(
        self, fill: Fill, donated: Any, others: Any, random_key: jax.Array, values: Values
    ) -> TrainState:
        def filled(part: str, drawn: Any) -> Any:
            return fill(part, drawn, donated, others)

        boxed = self._init_variables(random_key, values)
        state = init_state(bind(self._task, values), boxed, filled)
        return TrainState(**{part: filled(part, drawn) for part, drawn in vars(state).items()})

    def train_step(
        self, state: TrainState, batch: Any, random_key: jax.Array, values: Values
    ) -> tuple[TrainState, Metrics]:
        task = bind(self._task, values)
        key_of_step = jax.random.fold_in(jax.random.fold_in(random_key, 1), state.step)
        trained, context = task.learner.trained(state.params), self._context(training=True)

        def total_loss(
            params: Any, non_trainable: Any, part: Any, index: Any
        ) -> tuple[jax.Array, tuple[Metrics, Any]]:
            rngs = {'dropout': jax.random.fold_in(key_of_step, index)}
            variables = {PARAMS: replaced(state.params, params), NON_TRAINABLE: non_trainable}
            metrics, non_trainable = forward(task, variables, part, rngs, context)
            return metrics['loss'].total, (metrics, non_trainable)

        def step(non_trainable: Any, part: Any, index: Any) -> tuple[Any, Any]:
            gradients, (metrics, non_trainable) = jax.grad(total_loss, has_aux=True)(
                trained, non_trainable, part, index
            )
            return non_trainable, (gradients, metrics)

        if task.learner.microbatches == 1:
            non_trainable, (gradients, metrics) = step(state.non_trainable, batch, 0)
        else:
            non_trainable, (gradients, metrics) = self._accumulate(
                step, state.non_trainable, batch, task.learner.microbatches
            )
        # The gradient of the mean: exact even if parts of the batch have different weights.
        weight = jnp.maximum(metrics['loss'].weight, 1e-12)
        gradients = jax.tree.map(lambda g: g / weight, gradients)
        rates = None if self._width_factors is None else self._width_factors.rates()
        update = task.learner.update(
            state, gradients, metrics['loss'], self._decay_mask, rates, self._matrices
        )
        return update.state(non_trainable), joined(metrics, update.metrics)

    def _accumulate(
        self, step: Callable[[Any, Any, Any], tuple[Any, Any]], carry: Any, batch: Any, parts: int
    ) -> tuple[Any, Any]:
        """Sums the terms of `step`, (carry, part, its number) -> (carry, term), over a batch."""

        def divide(x: jax.Array) -> jax.Array:
            # Each part takes every parts-th example, so each example stays on its device.
            split = x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)
            spec = PartitionSpec(None, *self._mesh.feature_spec(x.ndim))
            return jax.lax.with_sharding_constraint(split, self._mesh.placed(spec))

        def add(carry_and_sums: Any, part_and_index: Any) -> tuple[Any, None]:
            carry, sums = carry_and_sums
            carry, more = step(carry, *part_and_index)
            return (carry, jax.tree.map(jnp.add, sums, more)), None

        divided = (jax.tree.map(divide, batch), jnp.arange(parts))
        first = jax.tree.map(lambda x: x[0], divided)
        _, abstract = jax.eval_shape(step, carry, *first)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), abstract)
        summed: tuple[Any, Any] = jax.lax.scan(add, (carry, zeros), divided)[0]
        return summed

    def eval_step(self, variables: Any, batch: Any, values: Values) -> Metrics:
        return forward(bind(self._task, values), variables, batch, {}, self._context())[0]

    def score_step(self, variables: Any, batch: Any, values: Values) -> Scores:
        return Scores(
            batch['example_ids'], score(bind(self._task, values), variables, batch, self._context())
        )

    def decode_step(
        self, variables: Any, batch: Any, values: Values, random_key: jax.Array, number: jax.Array
    ) -> DecodeOutput:
        # The same key after each training step makes the sampled texts comparable.
        of_batch = jax.random.fold_in(jax.random.fold_in(random_key, 2), number)
        return decode(bind(self._task, values), variables, batch, of_batch, self._context())

    def _context(self, training: bool = False) -> ForwardContext:
        dtype = jnp.dtype(self._task.fprop_dtype)
        return ForwardContext(training=training, dtype=dtype, mesh=self._mesh)
