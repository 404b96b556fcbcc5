"""Initialization and steps of a task, as functions of its numbers, to be traced."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from trainer import mesh as mesh_lib
from trainer import state as state_lib
from trainer.decoding.base import DecodeOutput
from trainer.layers.base import NON_TRAINABLE, PARAMS, ForwardContext
from trainer.learner.paths import replaced
from trainer.metrics import Metrics, joined
from trainer.program.step_functions import (
    ElementSpec,
    Values,
    abstract_random_key,
    abstract_values,
    decode,
    forward,
    init_state,
    init_variables,
    score,
    width_factors,
)
from trainer.state import TrainState
from trainer.symbolic.component import bind
from trainer.task import Task

Fill = Callable[[str, Any, Any, Any], Any]


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

    def __init__(self, task: Task, mesh: jax.sharding.Mesh, element_spec: ElementSpec) -> None:
        self._task, self._mesh = task, mesh  # Unbound: read numbers from the result of `bind`.
        self._element_spec = element_spec
        self._width_factors = width_factors(task, element_spec)
        given = abstract_random_key(), abstract_values(task)
        boxed, self.abstract_state = jax.eval_shape(self._boxed_and_init, *given)
        self.abstract_params = boxed[PARAMS]
        self._decay_mask = state_lib.decay_mask(self.abstract_params)

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
        update = task.learner.update(state, gradients, metrics['loss'], self._decay_mask, rates)
        return update.state(non_trainable), joined(metrics, update.metrics)

    def _accumulate(
        self, step: Callable[[Any, Any, Any], tuple[Any, Any]], carry: Any, batch: Any, parts: int
    ) -> tuple[Any, Any]:
        """Sums the terms of `step`, (carry, part, its number) -> (carry, term), over a batch."""

        def divide(x: jax.Array) -> jax.Array:
            # Each part takes every parts-th example, so each example stays on its device.
            split = x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)
            spec = PartitionSpec(None, *mesh_lib.feature_spec(x.ndim))
            return jax.lax.with_sharding_constraint(split, NamedSharding(self._mesh, spec))

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
