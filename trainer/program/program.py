"""Compiled programs: the initialization and the steps of one task on one mesh.

A program depends only on the structure of the task. Its numbers (learning rate, dropout rate …)
are arguments. Experiments that differ only in numbers share one program, and its compilation.
"""

import collections
import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from trainer import mesh as mesh_lib
from trainer import state as state_lib
from trainer.decoding.base import DecodeOutput
from trainer.layers.base import NON_TRAINABLE, PARAMS, ForwardContext
from trainer.learner.paths import replaced
from trainer.metrics import Metrics, joined
from trainer.program.placement import Placement
from trainer.program.step_functions import (
    ElementSpec,
    abstract_random_key,
    abstract_values,
    decode,
    forward,
    init_state,
    init_variables,
    score,
    width_factors,
)
from trainer.runtime import pgle
from trainer.runtime.garbage_collection import free_compilations
from trainer.runtime.wall_clock import COMPILATION, during
from trainer.state import TrainState
from trainer.symbolic.component import bind, key, numbers
from trainer.task import Task

Values = dict[str, jax.Array]
Fill = Callable[[str, Any, Any, Any], Any]

_MOST_PROGRAMS, _KEPT_PROGRAMS = 16, 8  # One too many drops all but the last ones.
_programs: 'collections.OrderedDict[object, Program]' = collections.OrderedDict()


class Scores(NamedTuple):
    """Log-probabilities of the targets of a batch, on all hosts.

    Attributes:
        example_ids_B: numbers of the examples; 0 for padding.
        log_probs_B: log-probabilities of their targets, in nats.
    """

    example_ids_B: jax.Array
    log_probs_B: jax.Array


def program_for(task: Task, mesh: jax.sharding.Mesh, element_spec: ElementSpec) -> 'Program':
    """The program of a task, shared by all tasks of the same structure in this process."""
    identity = (key(task), mesh, spec_key(element_spec))
    if identity not in _programs:
        _programs[identity] = Program(task.clone(deep=True), mesh, element_spec)
    _programs.move_to_end(identity)
    if len(_programs) > _MOST_PROGRAMS:
        for _ in range(len(_programs) - _KEPT_PROGRAMS):
            _programs.popitem(last=False)
        free_compilations()
    return _programs[identity]


def spec_key(element_spec: ElementSpec) -> Hashable:
    """Key that is equal for batches of equal shapes and dtypes."""
    return tuple((name, s.shape, str(s.dtype)) for name, s in sorted(element_spec.items()))


class Program:
    """Initialization and steps of one task on one mesh, each compiled once.

    The steps are compiled ahead of time, from shapes alone. The cost of a step is therefore known
    before any data or state exists, and belongs to the step that runs. With `--pgle`, JAX compiles
    the steps at their first call, and again after it has profiled them.

    Attributes:
        abstract_state: shapes, dtypes and shardings of the train state.
        data_shard: (number of shards of a batch, index of the shard of this process).
        compile_seconds: time that the compilation of the train step took; 0 before it.
    """

    @during(COMPILATION)
    def __init__(self, task: Task, mesh: jax.sharding.Mesh, element_spec: ElementSpec):
        self.mesh = mesh
        self._task = task  # Unbound: read numbers from the result of `bind`.
        self._element_spec = dict(element_spec)
        self._width_factors = width_factors(task, self._element_spec)
        values, random_key = abstract_values(task), abstract_random_key()
        boxed, abstract = jax.eval_shape(self._boxed_and_init, random_key, values)
        self._decay_mask = state_lib.decay_mask(boxed[PARAMS])
        params = state_lib.params_shardings(boxed[PARAMS], mesh)
        self._shardings = state_lib.state_shardings(abstract, params, mesh)
        self.abstract_state: TrainState = jax.tree.map(_sharded, abstract, self._shardings)
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._placement = Placement(mesh)
        self.data_shard = self._placement.data_shard
        self._replicate_jit = jax.jit(lambda value: value, out_shardings=self._replicated)
        self._init_jit = jax.jit(self._init, out_shardings=self._shardings)
        self._init_from_jit = jax.jit(
            self._init_from, static_argnums=0, donate_argnums=1, out_shardings=self._shardings
        )
        self._train_step_jit = self._jitted_training(self._train_step)
        self._steps: dict[Hashable, Callable[..., Any]] = {}
        self.compile_seconds = 0.0

    def values(self, task: Task) -> Values:
        """The numbers of a task of this structure, as arguments of the program."""
        # Python numbers: they stay weakly typed, so bfloat16 activations stay bfloat16.
        return self.replicated(numbers(task))

    def random_key(self, seed: int) -> jax.Array:
        """The key of all random numbers of a run."""
        return self.replicated(jax.random.key(seed))

    def init(self, random_key: jax.Array, values: Values) -> TrainState:
        """Initializes a train state, sharded over the mesh."""
        return self._compiled_init(random_key, values)

    @functools.cached_property
    @during(COMPILATION)
    def _compiled_init(self) -> Any:
        given = self._replicate((abstract_random_key(), abstract_values(self._task)))
        return self._init_jit.lower(*given).compile()

    def init_from(
        self, fill: Fill, donated: Any, others: Any, random_key: jax.Array, values: Values
    ) -> TrainState:
        """Initializes a train state from a random initialization and other arrays.

        Args:
            fill: (name of a part of the state, its random initialization, donated, others) -> the
                part. It is traced, and must be hashable.
            donated: arrays that become parts of the state; their buffers are donated.
        """
        return self._init_from_jit(fill, donated, others, random_key, values)

    @property
    def train_step(self) -> Callable[..., tuple[TrainState, Metrics]]:
        """(state, batch, random key, values) -> (state, metrics). Donates the state."""
        return self._train_step_jit if pgle.is_enabled() else self._compiled_train_step

    @functools.cached_property
    @during(COMPILATION)
    def _compiled_train_step(self) -> Any:
        began = time.perf_counter()
        compiled = self._compiled(self._train_step_jit)
        self.compile_seconds = time.perf_counter() - began
        return compiled

    def train_steps(self, count: int) -> Callable[..., tuple[TrainState, Metrics]]:
        """(state, batches, random key, values) -> (state, metrics), for several steps at once.

        The arrays of batches and metrics have a first axis of the steps. Donates the state.
        """

        def steps(state: TrainState, batches: Any, *others: Any) -> tuple[TrainState, Metrics]:
            return jax.lax.scan(
                lambda state, batch: self._train_step(state, batch, *others), state, batches
            )

        identity = 'train_steps', count
        if identity not in self._steps:
            self._steps[identity] = self._compiled(self._jitted_training(steps), count)
        return self._steps[identity]

    def _jitted_training(self, function: Callable[..., Any]) -> Any:
        places = self._shardings, self._replicated
        return jax.jit(function, donate_argnums=0, out_shardings=places)

    @during(COMPILATION)
    def _compiled(self, jitted: Any, count: int = 1) -> Any:
        batch = self._placement.abstract(self._element_spec, count)
        others = self._replicate((abstract_random_key(), abstract_values(self._task)))
        return jitted.lower(self.abstract_state, batch, *others).compile()

    def packed_step(self, count: int) -> Any:
        """Compiles a step that trains several runs: see `program.packing`.

        (stacked states, batches, random keys, values) -> (stacked states, metrics). The last three
        arguments and the metrics are tuples, with an item for each run. Donates the states.

        Args:
            count: number of runs.
        """

        def step(state: TrainState, batches: Any, random_keys: Any, values: Any) -> Any:
            each = stacked(batches), jnp.stack(random_keys), stacked(values)
            state, metrics = jax.vmap(self._train_step)(state, *each)
            rows = range(count)
            return state, tuple(
                jax.tree.map(lambda leaf, row=row: leaf[row], metrics) for row in rows
            )

        shardings = self.stacked_shardings
        jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, self._replicated))
        batch = self._placement.abstract(self._element_spec)
        others = self._replicate((abstract_random_key(), abstract_values(self._task)))
        states = jax.tree.map(
            lambda leaf, at: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype, sharding=at),
            self.abstract_state,
            shardings,
        )
        return jitted.lower(states, *((each,) * count for each in (batch, *others))).compile()

    @functools.cached_property
    def stacked_shardings(self) -> TrainState:
        """Shardings of the states of several runs: each device has its part of all of them."""
        shardings: TrainState = jax.tree.map(
            lambda at: NamedSharding(self.mesh, PartitionSpec(None, *at.spec)), self._shardings
        )
        return shardings

    def eval_step(self, element_spec: ElementSpec, count: int = 1) -> Callable[..., Metrics]:
        """(variables of the state, batch, values) -> metrics, for batches of the given shapes.

        Args:
            count: number of batches; the arrays of several, and their metrics, have it first.
        """
        return self._step_for(self._eval_step, element_spec, count=count)

    def score_step(self, element_spec: ElementSpec, count: int = 1) -> Callable[..., Scores]:
        """(variables of the state, batch, values) -> scores, for batches with `example_ids`.

        Args:
            count: as for `eval_step`.
        """
        return self._step_for(self._score_step, element_spec, count=count)

    def decode_step(self, element_spec: ElementSpec) -> Callable[..., DecodeOutput]:
        """(variables, batch, values, random key, number of the batch) -> decoded texts."""
        number = jax.ShapeDtypeStruct((), jnp.int32)
        random_key = abstract_random_key()
        return self._step_for(self._decode_step, element_spec, random_key, number)

    @during(COMPILATION)
    def _step_for(
        self, traced: Callable[..., Any], element_spec: ElementSpec, *more: Any, count: int = 1
    ) -> Callable[..., Any]:
        identity = traced.__name__, spec_key(element_spec), count
        if identity not in self._steps:
            function = traced if count == 1 else _over_batches(traced)
            jitted = jax.jit(function, out_shardings=self._replicated)
            replicated = self._replicate((abstract_values(self._task), *more))
            batch = self._placement.abstract(element_spec, count)
            shapes = self.abstract_state.variables, batch, *replicated
            self._steps[identity] = jitted if pgle.is_enabled() else jitted.lower(*shapes).compile()
        return self._steps[identity]

    def num_params(self) -> int:
        """Number of parameters, frozen ones included."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_state.params))

    def device_memory_bytes(self) -> int:
        """Memory that the compiled train step needs on each device."""
        return self._memory_bytes

    @functools.cached_property
    def _memory_bytes(self) -> int:
        return memory_bytes(self._compiled_train_step)

    def replicated(self, value: Any) -> Any:
        """Copies a value, or a tree of values, to all devices."""
        if jax.process_count() == 1:
            return jax.device_put(value, self._replicated)
        # `device_put` would compare the values of all processes on the devices, where a Python
        # number differs from its array.
        return self._replicate_jit(value)

    @property
    def max_in_flight(self) -> int:
        """Number of executions that may run behind the dispatched one."""
        # Several simulated devices deadlock in their collectives when steps overlap.
        simulated = self.mesh.devices.flat[0].platform == 'cpu' and self.mesh.size > 1
        return 0 if simulated else 2

    def put(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Makes global arrays of the batch of a host."""
        return self._placement.put(batch)

    def put_several(self, batches: Sequence[Mapping[str, np.ndarray]]) -> dict[str, jax.Array]:
        """Makes global arrays of batches of a host, with a first axis of several."""
        return self._placement.put_several(batches)

    def _replicate(self, abstract: Any) -> Any:
        return jax.tree.map(lambda leaf: _sharded(leaf, self._replicated), abstract)

    # Traced functions.

    def _init_variables(self, random_key: jax.Array, values: Values) -> Any:
        variables = init_variables(bind(self._task, values), self._element_spec, random_key)
        return variables if self._width_factors is None else self._width_factors.scaled(variables)

    def _boxed_and_init(self, random_key: jax.Array, values: Values) -> tuple[Any, TrainState]:
        boxed = self._init_variables(random_key, values)
        return boxed, init_state(bind(self._task, values), boxed)

    def _init(self, random_key: jax.Array, values: Values) -> TrainState:
        return self._boxed_and_init(random_key, values)[1]

    def _init_from(
        self, fill: Fill, donated: Any, others: Any, random_key: jax.Array, values: Values
    ) -> TrainState:
        def filled(part: str, drawn: Any) -> Any:
            return fill(part, drawn, donated, others)

        boxed = self._init_variables(random_key, values)
        state = init_state(bind(self._task, values), boxed, filled)
        return TrainState(**{part: filled(part, drawn) for part, drawn in vars(state).items()})

    def _train_step(
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
            return jax.lax.with_sharding_constraint(split, NamedSharding(self.mesh, spec))

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

    def _eval_step(self, variables: Any, batch: Any, values: Values) -> Metrics:
        return forward(bind(self._task, values), variables, batch, {}, self._context())[0]

    def _score_step(self, variables: Any, batch: Any, values: Values) -> Scores:
        return Scores(
            batch['example_ids'], score(bind(self._task, values), variables, batch, self._context())
        )

    def _decode_step(
        self, variables: Any, batch: Any, values: Values, random_key: jax.Array, number: jax.Array
    ) -> DecodeOutput:
        # The same key after each training step makes the sampled texts comparable.
        of_batch = jax.random.fold_in(jax.random.fold_in(random_key, 2), number)
        return decode(bind(self._task, values), variables, batch, of_batch, self._context())

    def _context(self, training: bool = False) -> ForwardContext:
        dtype = jnp.dtype(self._task.fprop_dtype)
        return ForwardContext(training=training, dtype=dtype, mesh=self.mesh)


def _over_batches(step: Callable[..., Any]) -> Callable[..., Any]:
    def steps(variables: Any, batches: Any, values: Values) -> Any:
        return jax.lax.map(lambda batch: step(variables, batch, values), batches)

    return steps


def memory_bytes(compiled: Any) -> int:
    """Memory that a compiled function needs on each device, its arguments and results included."""
    memory = compiled.memory_analysis()
    return int(
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
        - memory.alias_size_in_bytes
    )


def stacked(trees: Any) -> Any:
    """Stacks the leaves of equal trees along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _sharded(leaf: jax.ShapeDtypeStruct, at: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at, weak_type=leaf.weak_type)
