"""One training step of a task: gradients of its losses, and updates by its optimizers."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging
from jax.sharding import PartitionSpec

from trainer.layers.base import (
    AUX_LOSS,
    NON_TRAINABLE,
    PARAMS,
    SUMMARIES,
    ForwardContext,
    fold,
    forward_context,
)
from trainer.layers.precision import after_pass, overwritten
from trainer.layers.stack import per_layer
from trainer.layers.token_logits import TokenLogits, in_chunks
from trainer.learner.paths import replaced, widened
from trainer.metrics import Count, Metrics, WeightedScalar, joined, require_metric
from trainer.state import REFERENCE, TrainState
from trainer.symbolic.errors import UserError
from trainer.task import PartialLoss, Task

_ROUNDED = (
    'task.model: its outputs are bfloat16, so the loss and the metrics see rounded values. Let the '
    "last product be in float32: `self.head.call('logits', x)` of a Linear layer, "
    '`dtype=jnp.float32` of the last layer of a flax module.'
)


class ModelCalls:
    """Calls of methods of a model on one batch: see `trainer.task.ModelCall`.

    Attributes:
        variables: of the model; a call in training replaces those that are not trained.
    """

    def __init__(
        self, task: Task, variables: Any, batch: Any, rngs: Any, context: ForwardContext
    ) -> None:
        self.variables = variables
        self._model, self._module = task.model, task.model.module()
        self._rngs, self._count = rngs, 0
        self._context = dataclasses.replace(
            context,
            adapters=task.adapters,
            precision=task.precision,
            kernels=task.kernels,
            example_weights=task.example_weights(batch),
            label_weights=functools.partial(task.label_weights, batch),
        )
        self._losses: list[jax.Array] = []
        self._summaries: Metrics = {}

    def __call__(self, *args: Any, method: str = 'forward', adapted: bool = True) -> Any:
        context = self._context if adapted else dataclasses.replace(self._context, adapters=None)
        count, self._count = self._count, self._count + 1
        keys = self._rngs
        if count:
            keys = {name: jax.random.fold_in(key, count) for name, key in keys.items()}
        training = [SUMMARIES, NON_TRAINABLE] if self._context.training else []
        with forward_context(context):
            outputs, left = self._module.apply(
                self.variables,
                *args,
                _method=method,
                rngs=keys,
                mutable=[AUX_LOSS, *training],
            )
        if NON_TRAINABLE in left:
            self.variables = {**self.variables, NON_TRAINABLE: left[NON_TRAINABLE]}
        self._losses += jax.tree.leaves(left.get(AUX_LOSS, {}))
        one = jnp.ones((), jnp.float32)
        for path, value in jax.tree_util.tree_leaves_with_path(per_layer(left.get(SUMMARIES, {}))):
            name = jax.tree_util.keystr(path, simple=True, separator='/')
            self._summaries[f'{SUMMARIES}/{name}'] = WeightedScalar(value, one)
        return outputs

    def in_chunks(self, *args: Any, loss_chunks: int | None) -> jax.Array | TokenLogits:
        """The logits of a model that `splits_logits`: see `trainer.task.ModelCall`."""
        whole = self._context
        self._context = dataclasses.replace(whole, loss_chunks=loss_chunks)
        try:
            x_BTD = self(*args, method='last_hidden')
            return in_chunks(self._model, self.variables, x_BTD, self._context)
        finally:
            self._context = whole

    def reference(self, *args: Any) -> Any:
        """The outputs of the reference model, as in evaluation: see `Task.compares`."""
        fixed = replaced(self.variables[PARAMS], self.variables.get(REFERENCE, {}))
        variables = {**self.variables, PARAMS: jax.lax.stop_gradient(fixed)}
        context = self._context
        if REFERENCE not in self.variables:
            context = dataclasses.replace(context, adapters=None)
        with forward_context(dataclasses.replace(context, training=False)):
            outputs, _ = self._module.apply(variables, *args, mutable=[AUX_LOSS])
        return jax.lax.stop_gradient(outputs)

    def random_key(self, name: str) -> jax.Array:
        """A random key of this step, the same one for each name."""
        return fold(self._rngs['dropout'], name)

    def completed(self, metrics: Metrics) -> Metrics:
        """Adds auxiliary losses and summaries of the layers to the metrics of a loss."""
        if self._losses:
            aux_loss = sum(jnp.sum(loss) for loss in self._losses)
            if self._context.training:  # A reward of evaluation measures the model alone.
                loss = metrics['loss']
                metrics['loss'] = loss.replace(total=loss.total + aux_loss * loss.weight)
            one = jnp.ones((), jnp.float32)
            metrics = joined(metrics, {'aux_loss': WeightedScalar(aux_loss, one)})
        return metrics | self._summaries


def forward(
    task: Task, variables: Any, batch: Any, rngs: Any, context: ForwardContext
) -> tuple[Metrics, Any]:
    """Runs the forward pass of a task with bound numbers.

    Returns:
        The metrics of the batch; the updated variables of layers that are not trained.
    """
    call = ModelCalls(task, variables, batch, rngs, context)
    batch = task.prepared(batch, rngs['dropout'] if 'dropout' in rngs else jax.random.key(0))
    outputs = task.outputs(call, batch)
    if task.compares(batch):
        batch = {**batch, REFERENCE: call.reference(*task.model_inputs(batch))}
    if any(each.dtype == jnp.bfloat16 for each in jax.tree.leaves(outputs)):
        logging.log_first_n(logging.WARNING, _ROUNDED, 1)
    metrics = call.completed(_required(task, 'measure', task.measure(outputs, batch)))
    return metrics, call.variables.get(NON_TRAINABLE, {})


def _required(task: Task, method: str, metrics: Any) -> Metrics:
    """Returns the metrics of a task; raises UserError unless they are metrics, with a loss."""
    name = f'{task.sym_path or "task"}: {type(task).__name__}.{method}'
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


class PerParameter(NamedTuple):
    """Trees like the parameters, as `Learner.update` takes them."""

    decay_mask: Any
    rates: Any
    matrices: Any


class TracedStep:
    """One training step, for `Task.train_step` of a task with bound numbers."""

    def __init__(
        self,
        task: Task,
        state: TrainState,
        batch: Any,
        random_key: jax.Array,
        context: ForwardContext,
        per_parameter: PerParameter,
    ) -> None:
        self._task, self._batch, self._context = task, batch, context
        self._begun = self._state = state
        self._key = jax.random.fold_in(jax.random.fold_in(random_key, 1), state.step)
        self._per_parameter = per_parameter
        self._updates: list[tuple[str | None, Metrics]] = []

    def run(self) -> tuple[TrainState, Metrics]:
        """Does the step: the state after it, and its metrics."""
        metrics = _required(self._task, 'train_step', self._task.train_step(self))
        if not self._updates:
            raise UserError(
                f'{self._task.sym_path or "task"}: {type(self._task).__name__}.train_step updates '
                'no parameter: it calls step.minimize at least once'
            )
        state = dataclasses.replace(self._state, step=self._begun.step + 1)
        return state, joined(metrics, self._measured())

    def minimize(self, loss: PartialLoss | None = None, optimizer: str | None = None) -> Metrics:
        """Updates parameters to lessen a loss: see `trainer.task.TrainStep`."""
        task, state = self._task, self._state
        learner, number = task.learner, len(self._updates)
        key = fold(self._key, f'update_{number}') if number else self._key
        # Gradients of a float32 copy are not rounded to the dtype of stored parameters.
        trained = widened(learner.trained(state.params, optimizer))

        def measured(variables: Any, part: Any, rngs: Any) -> tuple[Metrics, Any]:
            if loss is None:
                return forward(task, variables, part, rngs, self._context)
            call = ModelCalls(task, variables, part, rngs, self._context)
            part = task.prepared(part, rngs['dropout'])
            found = _required(task, getattr(loss, '__name__', 'train_step'), loss(call, part))
            return call.completed(found), call.variables.get(NON_TRAINABLE, {})

        def total_loss(
            params: Any, histories: Any, non_trainable: Any, part: Any, index: Any
        ) -> tuple[jax.Array, tuple[Metrics, Any]]:
            rngs = {'dropout': jax.random.fold_in(key, index)}
            variables = {
                **state.variables,
                PARAMS: replaced(state.params, params),
                NON_TRAINABLE: replaced(non_trainable, histories),
            }
            metrics, non_trainable = measured(variables, part, rngs)
            return metrics['loss'].total, (metrics, non_trainable)

        def gradients_of(non_trainable: Any, part: Any, index: Any) -> tuple[Any, Any]:
            histories = overwritten(task.precision, non_trainable)
            (gradients, newest), (metrics, non_trainable) = jax.grad(
                total_loss, argnums=(0, 1), has_aux=True
            )(trained, histories, non_trainable, part, index)
            return after_pass(non_trainable, newest), (gradients, metrics)

        if learner.microbatches == 1:
            non_trainable, summed = gradients_of(state.non_trainable, self._batch, 0)
        else:
            non_trainable, summed = self._accumulate(
                gradients_of, state.non_trainable, learner.microbatches
            )
        gradients, metrics = summed
        # The gradient of the mean: exact even if parts of the batch have different weights.
        weight = jnp.maximum(metrics['loss'].weight, 1e-12)
        gradients = jax.tree.map(lambda g: g / weight, gradients)
        update = learner.update(
            state,
            gradients,
            metrics['loss'],
            *self._per_parameter,
            only=optimizer,
            ema_params=self._begun.ema_params,
            key=key,
        )
        # Schedules count steps, not updates.
        self._state = dataclasses.replace(update.state(non_trainable), step=state.step)
        self._updates.append((optimizer, update.metrics))
        return metrics

    def _accumulate(
        self, step: Callable[[Any, Any, Any], tuple[Any, Any]], carry: Any, parts: int
    ) -> tuple[Any, Any]:
        """Sums the terms of `step`, (carry, part, its number) -> (carry, term), over the batch."""
        mesh = self._context.mesh

        def divide(x: jax.Array) -> jax.Array:
            # Each part takes every parts-th example, so each example stays on its device.
            split = x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)
            if mesh is None or mesh.is_abstract:
                return split
            spec = PartitionSpec(None, *mesh.feature_spec(x.ndim))
            return jax.lax.with_sharding_constraint(split, mesh.placed(spec))

        def add(carry_and_sums: Any, part_and_index: Any) -> tuple[Any, None]:
            carry, sums = carry_and_sums
            carry, more = step(carry, *part_and_index)
            return (carry, jax.tree.map(jnp.add, sums, more)), None

        divided = (jax.tree.map(divide, self._batch), jnp.arange(parts))
        first = jax.tree.map(lambda x: x[0], divided)
        _, abstract = jax.eval_shape(step, carry, *first)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), abstract)
        summed: tuple[Any, Any] = jax.lax.scan(add, (carry, zeros), divided)[0]
        return summed

    def _measured(self) -> Metrics:
        """The metrics of all updates; with several, each update has a name of its own."""
        (first, metrics), *others = self._updates
        if first is None and not others:
            return metrics
        found: Metrics = {}
        times: dict[str, int] = {}
        for optimizer, metrics in self._updates:
            name = optimizer or 'all'
            times[name] = times.get(name, 0) + 1
            suffix = name if times[name] == 1 else f'{name}_{times[name]}'
            for key, metric in metrics.items():
                found[key if key.startswith('learning_rate') else f'{key}/{suffix}'] = metric
        norms = [metrics['gradient_norm'] for _, metrics in self._updates]
        squares = sum(norm.total**2 for norm in norms)
        weight = jnp.stack([norm.weight for norm in norms]).max()
        found['gradient_norm'] = WeightedScalar(jnp.sqrt(squares), weight)
        for key in ('skipped_steps', 'skipped_for_norm'):
            counts = [metrics[key].total for _, metrics in self._updates if key in metrics]
            if counts:
                found[key] = Count(jnp.stack(counts).max())
        return found
