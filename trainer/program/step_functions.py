"""Step functions of a task, to be traced with abstract batches and bound numbers.

`TracedSteps` takes the numbers as arguments, and binds them.
"""

import collections
import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainer import state as state_lib
from trainer.decoding.base import DecodeOutput
from trainer.layers.base import (
    NON_TRAINABLE,
    PARAMS,
    ForwardContext,
    forward_context,
)
from trainer.layers.heads import MultiHead
from trainer.layers.quantized import quantized
from trainer.learner.width_scaling import WidthFactors
from trainer.mesh import Arrangement
from trainer.metrics import Metrics
from trainer.program.offload import moved
from trainer.program.train_step import PerParameter, TracedStep, forward
from trainer.state import TrainState
from trainer.symbolic.code_key import code_key
from trainer.symbolic.component import bind, components, numbers
from trainer.task import Task
from trainer.tasks.tokens import TokenTask

ElementSpec = Mapping[str, jax.ShapeDtypeStruct]
Values = dict[str, jax.Array]
Fill = Callable[[str, Any, Any, Any], Any]

_KEPT = 8
_initial: 'collections.OrderedDict[Hashable, tuple[Any, TrainState]]' = collections.OrderedDict()
"""Shapes of the last initializations, by task and batch."""


def init_variables(task: Task, element_spec: ElementSpec, random_key: jax.Array) -> Any:
    """Initializes the variables of a task with bound numbers, in boxes with metadata."""
    zeros = {name: jnp.zeros(s.shape, s.dtype) for name, s in element_spec.items()}
    dtype = jnp.dtype(task.param_dtype)
    rounded: set[str] = set()
    context = ForwardContext(
        param_dtype=dtype, adapters=task.adapters, precision=task.precision, rounded=rounded
    )
    with forward_context(context):
        variables = task.model.module().init(
            {'params': jax.random.fold_in(random_key, 0)}, *task.model_inputs(zeros)
        )
    if task.precision is not None:
        task.precision.require_targets(rounded, variables[PARAMS])
    return {name: variables.get(name, {}) for name in (PARAMS, NON_TRAINABLE)}


def width_factors(task: Task, element_spec: ElementSpec) -> WidthFactors | None:
    """The factors of the parameters of a task with width scaling; None without.

    Raises:
        UserError: the base of the scaling does not fit the model.
    """
    scaling = task.learner.width_scaling
    if scaling is None:
        return None

    base = abstract_params(scaling.base_of(task), element_spec)
    return scaling.factors(task.model, abstract_init(task, element_spec)[0][PARAMS], base)


def abstract_params(task: Task, element_spec: ElementSpec) -> Any:
    """Shapes of the parameters of a task, in boxes with metadata."""
    task = _without_kernels(task)

    def drawn(random_key: jax.Array, values: Any) -> Any:
        return init_variables(bind(task, values), element_spec, random_key)

    return jax.eval_shape(drawn, abstract_random_key(), abstract_values(task))[PARAMS]


def abstract_init(task: Task, element_spec: ElementSpec) -> tuple[Any, TrainState]:
    """Shapes of the variables of a task, in boxes with metadata, and of its train state.

    Checks, costs and programs of tasks of one structure share one trace.
    """
    identity = code_key(task), spec_key(element_spec)
    if (found := _initial.get(identity)) is None:
        plain = _without_kernels(task)

        def drawn(random_key: jax.Array, values: Values) -> tuple[Any, TrainState]:
            bound = bind(plain, values)
            boxed = init_variables(bound, element_spec, random_key)
            return boxed, init_state(bound, boxed)

        given = abstract_random_key(), abstract_values(task)
        found = _initial[identity] = jax.eval_shape(drawn, *given)
        if len(_initial) > _KEPT:
            _initial.popitem(last=False)
    return found


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
    if task.adapters is not None and task.adapters.quantized is not None:
        params = quantized(params, task.adapters.quantized)
    masks = state_lib.decay_mask(boxes), state_lib.matrices(boxes)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        non_trainable=variables[NON_TRAINABLE],
        opt_state=task.learner.init(params, *masks),
        ema_params=task.learner.init_ema(params),
        reference_params=reference_params(task, params),
    )


def reference_params(task: Task, params: Any) -> Any:
    """Copies of the trained parameters, which stay as they are; {} if the task needs none."""
    return jax.tree.map(jnp.copy, task.learner.trained(params)) if task.keeps_reference else {}


def score(task: Task, variables: Any, batch: Any, context: ForwardContext) -> jax.Array:
    """Log-probability of the labels of each row [B], under a task with bound numbers."""
    assert isinstance(task, TokenTask)
    with forward_context(_with_fields(context, task)):
        outputs: Any = task.model.module().apply(variables, *task.model_inputs(batch))
    return task.scores(outputs, batch)


def decode(
    task: Task, variables: Any, batch: Any, random_key: jax.Array, context: ForwardContext
) -> DecodeOutput:
    """Decodes continuations of the prompts of a batch, by a task with bound numbers."""
    assert isinstance(task, TokenTask) and task.decoder is not None
    prompts = task.prompts(batch)
    length = prompts.ids_BP.shape[1] + task.decoder.max_decode_steps
    context = dataclasses.replace(_with_fields(context, task), cache_length=length)
    extend = task.extender(variables, batch, context)
    # A row of padding continues its first token; its text is left out.
    begun = prompts._replace(lengths_B=jnp.maximum(prompts.lengths_B, 1))
    decoded = task.decoder.decode(extend, begun, random_key)
    return DecodeOutput(dict(batch), prompts.lengths_B, decoded)


def _with_fields(context: ForwardContext, task: Task) -> ForwardContext:
    return dataclasses.replace(
        context, adapters=task.adapters, precision=task.precision, kernels=task.kernels
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
    task.rebind(kernels='jax', raise_on_no_change=False)
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
    state = abstract_init(task, element_spec)[1]
    task = _without_kernels(task)
    random_key, values = abstract_random_key(), abstract_values(task)
    batch: Any = dict(element_spec)

    def metrics(
        variables: Any, batch: Any, random_key: jax.Array, values: Values, training: bool = True
    ) -> Metrics:
        context = ForwardContext(training=training, dtype=jnp.dtype(task.fprop_dtype), mesh=mesh)
        rngs = {'dropout': random_key} if training else {}
        return forward(bind(task, values), variables, batch, rngs, context)[0]

    variables = dataclasses.replace(state, ema_params={}).variables
    return metrics, state, (variables, batch, random_key, values)


def abstract_step(
    task: Task, element_spec: ElementSpec, mesh: Arrangement | None = None
) -> tuple[Callable[..., tuple[TrainState, Metrics]], tuple[Any, ...]]:
    """Makes a traceable function of a whole training step, and the shapes of its arguments.

    Args:
        mesh: checks the axes of activations; None checks none.
    """
    task = _without_kernels(task)
    task.learner.rebind(microbatches=1, raise_on_no_change=False)  # Any batch divides.
    steps = TracedSteps(task, mesh, element_spec)
    given = steps.abstract_state, dict(element_spec), abstract_random_key(), abstract_values(task)
    return steps.train_step, given


def abstract_outputs(task: Task, element_spec: ElementSpec) -> Any:
    """Shapes of the outputs of a model in evaluation."""
    _, _, (variables, batch, _, values) = abstract_metrics(task, element_spec)

    def outputs(variables: Any, batch: Any, values: Values) -> Any:
        bound = bind(task, values)
        dtype = jnp.dtype(task.fprop_dtype)
        with forward_context(_with_fields(ForwardContext(dtype=dtype), bound)):
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
    """Functions of a task; the numbers of the task are arguments. A mesh divides activations.

    Attributes:
        abstract_params: shapes of the parameters, in boxes with metadata.
        abstract_state: shapes of the train state.
    """

    def __init__(self, task: Task, mesh: Arrangement | None, element_spec: ElementSpec) -> None:
        self._task, self._mesh = task, mesh  # Unbound: read numbers from the result of `bind`.
        self._element_spec = element_spec
        self._width_factors = width_factors(task, element_spec)
        boxed, self.abstract_state = abstract_init(task, element_spec)
        self.abstract_params = boxed[PARAMS]
        self._decay_mask = state_lib.decay_mask(self.abstract_params)
        self._matrices = state_lib.matrices(self.abstract_params)
        if task.adapters is not None:
            task.adapters.check_params(self.abstract_params)

    def _init_variables(self, random_key: jax.Array, values: Values) -> Any:
        variables = init_variables(bind(self._task, values), self._element_spec, random_key)
        return variables if self._width_factors is None else self._width_factors.scaled(variables)

    def init(self, random_key: jax.Array, values: Values) -> TrainState:
        return init_state(bind(self._task, values), self._init_variables(random_key, values))

    def init_from(
        self, fill: Fill, donated: Any, others: Any, random_key: jax.Array, values: Values
    ) -> TrainState:
        def filled(part: str, drawn: Any) -> Any:
            return fill(part, drawn, donated, others)

        boxed = self._init_variables(random_key, values)
        state = init_state(bind(self._task, values), boxed, filled)
        parts = {part: filled(part, drawn) for part, drawn in vars(state).items() if part != PARAMS}
        return dataclasses.replace(state, **parts)

    def train_step(
        self, state: TrainState, batch: Any, random_key: jax.Array, values: Values
    ) -> tuple[TrainState, Metrics]:
        rates = None if self._width_factors is None else self._width_factors.rates()
        per_parameter = PerParameter(self._decay_mask, rates, self._matrices)
        task, context = bind(self._task, values), self._context(training=True)
        if task.learner.offload_state:
            state = moved(state, jax.memory.Space.Device)
        state, metrics = TracedStep(task, state, batch, random_key, context, per_parameter).run()
        if task.learner.offload_state:
            state = moved(state, jax.memory.Space.Host)
        return state, metrics

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
