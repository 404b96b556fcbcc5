"""Compiled programs: the initialization and the steps of one task on one mesh.

A program depends only on the structure of the task. Its numbers (learning rate, dropout rate …)
are arguments. Experiments that differ only in numbers share one program, and its compilation.
"""

import collections
import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from trainer import state as state_lib
from trainer.decoding.base import DecodeOutput
from trainer.mesh import Arrangement
from trainer.metrics import Metrics
from trainer.program.compilations import Compilations
from trainer.program.offload import on_host
from trainer.program.placement import Placement
from trainer.program.step_functions import (
    ElementSpec,
    Fill,
    Scores,
    TracedSteps,
    Values,
    abstract_random_key,
    abstract_values,
    spec_key,
)
from trainer.runtime import pgle
from trainer.runtime.garbage_collection import free_compilations
from trainer.runtime.wall_clock import COMPILATION, during
from trainer.state import TrainState
from trainer.symbolic.code_key import code_key
from trainer.symbolic.component import numbers
from trainer.symbolic.errors import UserError
from trainer.task import Task

_TRAIN = 'train'

PROGRAMS: 'collections.OrderedDict[object, Program]' = collections.OrderedDict()


def program_for(
    task: Task,
    mesh: Arrangement,
    element_spec: ElementSpec,
    programs: 'collections.OrderedDict[object, Program]' = PROGRAMS,
    kept: int = 8,
) -> 'Program':
    """The program of tasks of one structure and code. One above `2 * kept` drops all but `kept`."""
    identity = (code_key(task), mesh, spec_key(element_spec))
    if identity not in programs:
        programs[identity] = Program(task.clone(deep=True), mesh, element_spec)
    programs.move_to_end(identity)
    if len(programs) > 2 * kept:
        for _ in range(len(programs) - kept):
            programs.popitem(last=False)
        free_compilations()
    return programs[identity]


class Program:
    """Initialization and steps of one task on one mesh, each compiled once.

    The steps are compiled ahead of time, from shapes alone. The cost of a step is therefore known
    before any data or state exists, and belongs to the step that runs. With `--pgle`, JAX compiles
    the steps at their first call, and again after it has profiled them.

    Attributes:
        mesh: the devices.
        abstract_state: shapes, dtypes and shardings of the train state.
        data_shard: (number of shards of a batch, index of the shard of this process).
        put: makes global arrays of batches of this process; see `Placement.put`.
    """

    @during(COMPILATION)
    def __init__(self, task: Task, mesh: Arrangement, element_spec: ElementSpec) -> None:
        self.mesh, self._task, self._element_spec = mesh.mesh, task, dict(element_spec)
        self._traced = TracedSteps(task, mesh, self._element_spec)
        abstract = self._traced.abstract_state
        params = state_lib.params_shardings(self._traced.abstract_params, mesh)
        self._shardings = state_lib.state_shardings(abstract, params, mesh)
        if task.learner.offload_state:
            self._shardings = on_host(self._shardings, abstract, self.mesh)
        self.abstract_state: TrainState = jax.tree.map(_sharded, abstract, self._shardings)
        self._replicated = mesh.placed(PartitionSpec())
        self._placement = Placement(mesh)
        self.data_shard, self.put = self._placement.data_shard, self._placement.put
        self._replicate_jit = jax.jit(lambda value: value, out_shardings=self._replicated)
        self._init_from_jit = jax.jit(
            self._traced.init_from,
            static_argnums=0,
            donate_argnums=1,
            out_shardings=self._shardings,
        )
        self._train_step_jit = self._jitted(self._traced.train_step)
        self._compilations = Compilations()

    def values(self, task: Task) -> Values:
        """The numbers of a task of this structure, as arguments of the program."""
        # Python numbers: they stay weakly typed, so bfloat16 activations stay bfloat16.
        return self.replicated(numbers(task))

    def random_key(self, seed: int) -> jax.Array:
        """The key of all random numbers of a run."""
        return self.replicated(jax.random.key(seed))

    def init(self, random_key: jax.Array, values: Values) -> TrainState:
        """Initializes a train state, sharded over the mesh."""
        init = self._compilations.of('init', self._lowered_init)
        state: TrainState = init(random_key, values)
        return state

    def _lowered_init(self) -> Any:
        jitted = jax.jit(self._traced.init, out_shardings=self._shardings)
        return jitted.lower(*self._key_and_values)

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
        return self.train_steps(1)

    def train_steps(self, count: int) -> Callable[..., tuple[TrainState, Metrics]]:
        """(state, batches, random key, values) -> (state, metrics), for `count` steps at once.

        The arrays of several batches, and their metrics, have a first axis of the steps. Donates
        the state.
        """
        if count == 1 and pgle.is_enabled():
            return self._train_step_jit
        lower = functools.partial(self._lowered_train_steps, count)
        compiled: Callable[..., Any] = self._compilations.of((_TRAIN, count), lower)
        return compiled

    def _lowered_train_steps(self, count: int) -> Any:
        function = self._traced.train_step
        jitted = self._train_step_jit if count == 1 else self._jitted(_over_steps(function))
        batch = self._placement.abstract(self._element_spec, count)
        return jitted.lower(self.abstract_state, batch, *self._key_and_values)

    def begin_compiling(
        self, train_counts: Iterable[int], evaluated: Iterable[tuple[ElementSpec, int]]
    ) -> None:
        """Begins to compile steps that a run will need, side by side.

        Args:
            train_counts: of `train_steps`.
            evaluated: arguments of `eval_step`.
        """
        if pgle.is_enabled():
            return
        programs: dict[Hashable, Callable[[], Any]] = {
            (_TRAIN, count): functools.partial(self._lowered_train_steps, count)
            for count in train_counts
        }
        for spec, count in evaluated:
            traced = self._traced.eval_step
            lower = functools.partial(self._lowered_step, traced, spec, count=count)
            programs[_identity(traced, spec, count)] = lower
        self._compilations.begin(programs)

    def end_compiling(self) -> None:
        """Waits for the steps of `begin_compiling`."""
        self._compilations.end()

    @property
    def compile_seconds(self) -> float:
        """Time that the compilation of the train step took; 0 before it."""
        return self._compilations.seconds.get((_TRAIN, 1), 0.0)

    def _jitted(self, training: Callable[..., Any]) -> Any:
        places = self._shardings, self._replicated
        return jax.jit(training, donate_argnums=0, out_shardings=places)

    @property
    def _key_and_values(self) -> Any:
        return self._replicate((abstract_random_key(), abstract_values(self._task)))

    def packed_step(self, count: int) -> Any:
        """Compiles a step that trains several runs: see `program.packing`.

        (stacked states, frozen parameters, batches, random keys, values) -> (stacked states,
        metrics). The last three arguments and the metrics are tuples, with an item for each run.
        Donates the states. The runs share one copy of the frozen parameters beside adapters.

        Args:
            count: number of runs.

        Raises:
            UserError: the state of the optimizer is in the memory of the host.
        """
        if self._task.learner.offload_state:
            raise UserError('task.learner.offload_state: the states of packed runs are on devices')

        def step(
            state: TrainState, frozen: Any, batches: Any, random_keys: Any, values: Any
        ) -> Any:
            def of_one(state: TrainState, *given: Any) -> tuple[TrainState, Metrics]:
                whole = state_lib.with_frozen(state, frozen)
                after, metrics = self._traced.train_step(whole, *given)
                return state_lib.without_frozen(after), metrics

            each = stacked(batches), jnp.stack(random_keys), stacked(values)
            state, metrics = jax.vmap(of_one)(state, *each)
            rows = range(count)
            return state, tuple(
                jax.tree.map(lambda leaf, row=row: leaf[row], metrics) for row in rows
            )

        shardings = self.stacked_shardings
        jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, self._replicated))
        given = self._placement.abstract(self._element_spec), *self._key_and_values
        states = jax.tree.map(
            lambda leaf, at: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype, sharding=at),
            state_lib.without_frozen(self.abstract_state),
            shardings,
        )
        frozen = state_lib.frozen_of(self.abstract_state)
        return jitted.lower(states, frozen, *((each,) * count for each in given)).compile()

    @functools.cached_property
    def stacked_shardings(self) -> TrainState:
        """Shardings of the states of several runs: each device has its part of all of them."""
        shardings: TrainState = jax.tree.map(
            lambda at: NamedSharding(self.mesh, PartitionSpec(None, *at.spec)),
            state_lib.without_frozen(self._shardings),
        )
        return shardings

    def eval_step(self, element_spec: ElementSpec, count: int = 1) -> Callable[..., Metrics]:
        """(variables of the state, batch, values) -> metrics, for batches of the given shapes.

        Args:
            count: number of batches; the arrays of several, and their metrics, have it first.
        """
        return self._step_for(self._traced.eval_step, element_spec, count=count)

    def score_step(self, element_spec: ElementSpec, count: int = 1) -> Callable[..., Scores]:
        """(variables of the state, batch, values) -> scores, for batches with `example_ids`.

        Args:
            count: as for `eval_step`.
        """
        return self._step_for(self._traced.score_step, element_spec, count=count)

    def decode_step(self, element_spec: ElementSpec) -> Callable[..., DecodeOutput]:
        """(variables, batch, values, random key, number of the batch) -> decoded texts."""
        number = jax.ShapeDtypeStruct((), jnp.int32)
        random_key = abstract_random_key()
        return self._step_for(self._traced.decode_step, element_spec, random_key, number)

    def _step_for(
        self, traced: Callable[..., Any], element_spec: ElementSpec, *more: Any, count: int = 1
    ) -> Callable[..., Any]:
        lower = functools.partial(self._lowered_step, traced, element_spec, *more, count=count)
        step: Callable[..., Any] = self._compilations.of(
            _identity(traced, element_spec, count), lower
        )
        return step

    def _lowered_step(
        self, traced: Callable[..., Any], element_spec: ElementSpec, *more: Any, count: int
    ) -> Any:
        function = traced if count == 1 else _over_batches(traced)
        jitted = jax.jit(function, out_shardings=self._replicated)
        if pgle.is_enabled():
            return pgle.CompiledWhenCalled(jitted)
        replicated = self._replicate((abstract_values(self._task), *more))
        batch = self._placement.abstract(element_spec, count)
        return jitted.lower(self.abstract_state.variables, batch, *replicated)

    def num_params(self) -> int:
        """Number of parameters, frozen ones included."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_state.params))

    def device_memory_bytes(self) -> int:
        """Memory that the compiled train step needs on each device."""
        lower = functools.partial(self._lowered_train_steps, 1)
        return memory_bytes(self._compilations.of((_TRAIN, 1), lower))

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

    def _replicate(self, abstract: Any) -> Any:
        return jax.tree.map(lambda leaf: _sharded(leaf, self._replicated), abstract)


def _identity(traced: Callable[..., Any], element_spec: ElementSpec, count: int) -> Hashable:
    return traced.__name__, spec_key(element_spec), count


def _over_steps(step: Callable[..., Any]) -> Callable[..., Any]:
    def steps(state: TrainState, batches: Any, *others: Any) -> tuple[TrainState, Metrics]:
        return jax.lax.scan(lambda state, batch: step(state, batch, *others), state, batches)

    return steps


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
