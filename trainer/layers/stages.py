"""Layers that run in the stages of a pipeline, as functions of arrays.

Each stage runs on its own devices. `jax.shard_map` is manual over the stages alone: the compiler
divides the work of a stage over the other axes of the mesh, as without a pipeline.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from trainer.layers.pipeline import Schedule
from trainer.mesh import Arrangement

RunLayer = Callable[[Any, Any, jax.Array, Any, jax.Array], tuple[jax.Array, Any]]
"""(parameters, other values of the layer, x, arguments, microbatch) -> (x, numbers to average)."""


def through_stages(
    run_layer: RunLayer,
    remat: Callable[[Any], Any],
    params: Any,
    values: Any,
    x: jax.Array,
    args: Any,
    schedule: Schedule,
    arrangement: Arrangement,
) -> tuple[jax.Array, Any]:
    """Applies layers to a batch, each layer on the devices of its stage.

    Args:
        run_layer: applies one layer to a microbatch.
        remat: transforms the function of a layer, so that its backward pass computes parts again.
        params: parameters of the layers, [L, ...], divided over the stages in the order of L.
        values: other values of the layers, [L, ...], which all devices have.
        x: [B, ...].
        args: other arguments of all layers, each [B, ...].

    Returns:
        The result of the last layer, [B, ...]; the other results of each layer, averaged over the
        microbatches, [L, ...].
    """
    stages, micro, turns = schedule.num_stages, schedule.num_microbatches, schedule.circular_repeat
    axes = arrangement.parts('layers')[1]
    # [L, ...] -> [stages, turns * layers of a turn, ...]
    values = jax.tree.map(lambda v: _swapped(v, turns, stages), values)
    everywhere = jax.tree.map(
        lambda a: _on_all_stages(_microbatches(a, micro), axes, arrangement), (x, args)
    )

    def work(params: Any, *own: Any) -> Any:
        values, (x_M, args_M) = jax.tree.map(lambda v: v[0], own)
        if turns > 1:
            params = jax.tree.map(lambda v: _moved_to_turns(v, turns, stages, axes), params)
            values = jax.tree.map(lambda v: v.reshape(turns, -1, *v.shape[1:]), values)
        of_stage = _Stage(run_layer, remat, params, values, args_M, schedule, axes)
        return jax.tree.map(lambda v: v[None], of_stage.run(x_M))

    x_SM, means = jax.shard_map(
        work,
        mesh=arrangement.mesh,
        in_specs=PartitionSpec(axes),
        out_specs=PartitionSpec(axes),
        axis_names={*axes},
        check_vma=False,  # Gradients of a `ring_attention` inside have no types of manual axes.
    )(params, values, everywhere)
    means = jax.tree.map(lambda v: _swapped(v.reshape(-1, *v.shape[3:]), stages, turns), means)
    # The results arrive at the first stage.
    return _joined(x_SM[0]), jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]), means)


@dataclasses.dataclass(frozen=True)
class _Stage:
    """The stage of a device. `params` and `values` are [turns, n, ...], with one turn [n, ...]."""

    run_layer: Any
    remat: Any
    params: Any
    values: Any
    args_M: Any
    schedule: Schedule
    axes: tuple[str, ...]

    def run(self, x_M: jax.Array) -> tuple[jax.Array, Any]:
        """Does all ticks: x_M [microbatches, ...] -> results in the first stage; means.

        `waiting` has the microbatches that begin a turn in the first stage. A result of the last
        stage replaces the microbatch there. A stage without work computes on another microbatch,
        and nothing reads the result: zeros would make gradients of norms NaN.
        """
        stages, micro, turns, *_ = self.schedule
        index = jax.lax.axis_index(self.axes)
        to_next = [(stage, (stage + 1) % stages) for stage in range(stages)]

        def arrived(waiting: jax.Array, moved: jax.Array, tick: Any) -> jax.Array:
            slot = (tick - stages) % micro
            old = jax.lax.dynamic_index_in_dim(waiting, slot, keepdims=False)
            new = jnp.where(tick >= stages, moved, old)
            return jax.lax.dynamic_update_index_in_dim(waiting, new, slot, 0)

        def step(carry: Any, tick: jax.Array) -> Any:
            moved, waiting = carry
            waiting = arrived(waiting, moved, tick)
            done = tick - index  # Pieces of work before this one.
            at, turn = done % micro, jnp.clip(done // micro, 0, turns - 1)
            x = jnp.where(index == 0, _at(waiting, at), moved)
            x, numbers = self._turn(x, turn, at)
            return (jax.lax.ppermute(x, self.axes, to_next), waiting), numbers

        ticks = jnp.arange(self.schedule.num_ticks)
        (moved, waiting), each_T = jax.lax.scan(step, (x_M[0], x_M), ticks)

        def means(v_T: jax.Array) -> jax.Array:
            own = jax.lax.dynamic_slice_in_dim(v_T, index, turns * micro)
            return jnp.mean(own.reshape(turns, micro, *own.shape[1:]), axis=1)

        return arrived(waiting, moved, len(ticks)), jax.tree.map(means, each_T)

    def _turn(self, x: jax.Array, turn: jax.Array, at: jax.Array) -> tuple[jax.Array, Any]:
        """Applies the layers of a turn to microbatch number `at`."""
        layer = self.remat(lambda own, x, args: self.run_layer(*own, x, args, at))
        args = jax.tree.map(lambda a: _at(a, at), self.args_M)

        def layers(own: Any, x: jax.Array, args: Any) -> tuple[jax.Array, Any]:
            done: tuple[jax.Array, Any] = jax.lax.scan(lambda x, each: layer(each, x, args), x, own)
            return done

        if self.schedule.circular_repeat == 1:
            return layers((self.params, self.values), x, args)

        # Without rematerialization, each tick would keep a copy of the weights of its turn.
        @functools.partial(jax.checkpoint, prevent_cse=False, policy=_all_but_slices)
        def layers_of(turn: jax.Array, x: jax.Array, args: Any) -> tuple[jax.Array, Any]:
            own = jax.tree.map(lambda v: _at(v, turn), (self.params, self.values))
            return layers(own, x, args)

        done: tuple[jax.Array, Any] = layers_of(turn, x, args)
        return done


def _all_but_slices(primitive: Any, *_: Any, **__: Any) -> bool:
    """The policy of rematerialization that selects again, and keeps all other values."""
    return primitive.name not in ('dynamic_slice', 'squeeze')


def rounds_of_moves(turns: int, stages: int) -> list[list[tuple[int, int, int]]]:
    """Moves of the layers from the order of storage to the turns of a circular pipeline.

    Stored in the order of the layers, a device has `turns` neighbouring groups. In a turn, group
    after group passes stage after stage, so group g belongs to stage g % stages.

    Returns:
        Rounds. In each, each device sends one group and receives one: (the sender's number of the
        group, receiver, turn there) by sender.

    Example:
        >>> rounds_of_moves(turns=2, stages=2)
        [[(0, 0, 0), (1, 1, 1)], [(1, 1, 0), (0, 0, 1)]]
    """
    # Senders at this distance have the same receivers, and send to them in different rounds.
    distance = stages // math.gcd(turns, stages)
    rounds = []
    for first in range(turns):
        sent = [(first + sender // distance) % turns for sender in range(stages)]
        groups = [sender * turns + number for sender, number in enumerate(sent)]
        rounds.append(
            [(number, g % stages, g // stages) for number, g in zip(sent, groups, strict=True)]
        )
    return rounds


def _moved_to_turns(stored: jax.Array, turns: int, stages: int, axes: tuple[str, ...]) -> jax.Array:
    """[layers of a device, ...] in the order of storage -> those of its stage, [turns, n, ...]."""
    index = jax.lax.axis_index(axes)
    groups = stored.reshape(turns, -1, *stored.shape[1:])
    moved = groups
    for moves in rounds_of_moves(turns, stages):
        numbers, receivers, turns_there = zip(*moves, strict=True)
        sent = _at(groups, jnp.array(numbers)[index])
        received = jax.lax.ppermute(sent, axes, [*enumerate(receivers)])
        by_receiver = jnp.array([turns_there[receivers.index(i)] for i in range(stages)])
        moved = jax.lax.dynamic_update_index_in_dim(moved, received, by_receiver[index], 0)
    return moved


def _at(array: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(array, index, keepdims=False)


def _swapped(array: jax.Array, first: int, second: int) -> jax.Array:
    """[first * second * n, ...] -> [second, first * n, ...]."""
    split = array.reshape(first, second, -1, *array.shape[1:]).swapaxes(0, 1)
    return split.reshape(second, -1, *array.shape[1:])


def _microbatches(array: jax.Array, count: int) -> jax.Array:
    """[B, ...] -> [count, B / count, ...].

    Each microbatch takes every count-th example, so each example stays on its device.
    """
    return array.reshape(-1, count, *array.shape[1:]).swapaxes(0, 1)


def _joined(array: jax.Array) -> jax.Array:
    return array.swapaxes(0, 1).reshape(-1, *array.shape[2:])


def _on_all_stages(array: jax.Array, axes: tuple[str, ...], arrangement: Arrangement) -> jax.Array:
    """[M, B / M, ...] -> [stages, M, B / M, ...], where each stage has all microbatches.

    A replicated argument of `shard_map` would have the same values. The sum of its gradients over
    the stages, in bfloat16, crashes XLA on CPUs.
    """
    stages = arrangement.parts('layers')[0]
    examples = tuple(axis for axis in arrangement.parts('batch')[1] if axis not in axes)
    rest = (PartitionSpec.UNCONSTRAINED,) * (array.ndim - 2)
    spec = PartitionSpec(axes, None, examples, *rest)
    whole = jnp.broadcast_to(array, (stages, *array.shape))
    return jax.lax.with_sharding_constraint(whole, arrangement.placed(spec))
