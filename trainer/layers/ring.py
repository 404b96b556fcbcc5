"""Attention over devices that share the positions of each row."""

import functools
import math
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from trainer.layers import blockwise
from trainer.layers.base import Layer
from trainer.layers.blockwise import Ends, Places, Shaping, Sums, Visibility
from trainer.layers.context import current_context

Tree = TypeVar('Tree')


class Ring(NamedTuple):
    """Devices in a ring, in the order of their positions.

    Attributes:
        axes: mesh axes that divide positions.
        devices: their number.
        turns: number of devices whose keys each device sees: all of them, or those in a window.
        block: positions of a block within a device.
        visible: keys that a query sees.
    """

    axes: tuple[str, ...]
    devices: int
    turns: int
    block: int
    visible: Visibility

    def passed(self, tree: Tree, by: int = 1) -> Tree:
        """Passes arrays to the device that is `by` places further on."""
        to = [(at, (at + by) % self.devices) for at in range(self.devices)]
        passed: Tree = jax.lax.ppermute(tree, self.axes, to)
        return passed


def shares_positions(*lengths: int) -> bool:
    """True if devices share the positions of rows of these lengths, outside of decoding.

    Positions that do not divide evenly are whole on each device.
    """
    context = current_context()
    if context.mesh is None or context.cache_length is not None:
        return False
    if context.mesh.is_abstract and jax.sharding.get_abstract_mesh().empty:
        return False  # Only shapes are computed.
    parts, _ = context.mesh.parts('length')
    return parts > 1 and not any(length % parts for length in lengths)


def ring_attention(
    layer: Layer,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKV: jax.Array,
    queries: Places,
    keys: Places,
    visible: Visibility,
    shaping: Shaping,
    block: int = 512,
) -> tuple[jax.Array, jax.Array]:
    """Attention whose keys and values go around a ring of devices (Liu et al. 2023).

    Each device has the positions of its part of the rows, and its memory grows with T / devices,
    also in the backward pass. Devices with early positions see few keys of a causal mask, and wait
    for those with late ones.

    Args:
        layer: the running one, in a context in which `shares_positions` is true.
        q_BTNH: queries.
        k_BSKH: keys; K divides N.
        v_BSKV: values.
        queries, keys: their positions.
        block: positions whose logits are in memory at a time, with those of as many keys.

    Returns:
        The weighted means of the values, [B, T, N, V], and the logarithms of the sums of the
        exponentials of all logits, float32 [B, T, N].
    """
    mesh = current_context().mesh
    assert mesh is not None
    devices, axes = mesh.parts('length')
    turns, part = devices, k_BSKH.shape[1] // devices
    if visible.window is not None:
        turns = min(devices, math.ceil((visible.window - 1) / part) + 1)
    heads = mesh.spec('batch', 'length', 'heads', None)
    logits = mesh.spec('batch', 'length', 'heads')

    def spec_of(places: Places) -> Any:
        def spec(x: jax.Array) -> PartitionSpec:
            examples = ['batch' if len(x) > 1 else None] * (x.ndim - 1)
            return mesh.spec(*examples, 'length')

        return jax.tree.map(spec, places)

    of_shaping = jax.tree.map(lambda x: mesh.spec(*['heads', None][: x.ndim]), shaping)
    is_inside = not jax.sharding.get_abstract_mesh().empty
    attend = jax.shard_map(
        functools.partial(_attend, Ring(axes, devices, turns, block, visible)),
        mesh=None if is_inside else mesh.mesh,
        in_specs=(heads, heads, heads, spec_of(queries), spec_of(keys), of_shaping),
        out_specs=(heads, logits),
        axis_names={name for of in ('batch', 'length', 'heads') for name in mesh.parts(of)[1]},
        check_vma=False,
    )
    out_BTNV, total_BTN = attend(q_BTNH, k_BSKH, v_BSKV, queries, keys, shaping)
    whole = ('batch', 'length', 'heads', 'kv')
    return layer.constrain(out_BTNV, whole), total_BTN


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    ring: Ring,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKV: jax.Array,
    queries: Places,
    keys: Places,
    shaping: Shaping,
) -> tuple[jax.Array, jax.Array]:
    return _forward(ring, q_BTNH, k_BSKH, v_BSKV, queries, keys, shaping)[0]


def _forward(
    ring: Ring,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKV: jax.Array,
    queries: Places,
    keys: Places,
    shaping: Shaping,
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    given = q_BTNH, k_BSKH, v_BSKV, queries, keys, shaping
    (q_C, queries_C), keys_C = _in_blocks(ring, *given[:5])

    def of_keys(own: Any, sums: Sums, other: Any) -> tuple[Sums, None]:
        (q, queries), (k, v, keys) = own, other

        def seen() -> Sums:
            return blockwise.with_keys(sums, q, k, v, queries, keys, shaping, ring.visible)

        may = blockwise.may_see(queries, keys, ring.visible)
        return jax.lax.cond(may, seen, lambda: sums), None

    def turn(carry: Any, _: None) -> tuple[Any, None]:
        keys_C, sums_C = carry

        def of_queries(_: None, each: Any) -> tuple[None, Sums]:
            *own, sums = each
            return None, jax.lax.scan(functools.partial(of_keys, own), sums, keys_C)[0]

        # Nothing waits for these keys before the next turn.
        passed_C = ring.passed(keys_C)
        return (passed_C, jax.lax.scan(of_queries, None, (q_C, queries_C, sums_C))[1]), None

    sums_C = jax.vmap(functools.partial(blockwise.no_keys, value_dim=v_BSKV.shape[-1]))(q_C)
    (_, sums_C), _ = jax.lax.scan(turn, (keys_C, sums_C), None, length=ring.turns)
    out_C, length = sums_C.out_BKGSV / sums_C.total_BKGS[..., None], q_BTNH.shape[1]
    out_BTNV = _ungrouped(out_C, length).astype(v_BSKV.dtype)
    total_BTN = _ungrouped(sums_C.max_BKGS + jnp.log(sums_C.total_BKGS), length)
    return (out_BTNV, total_BTN), (given, out_BTNV, sums_C.max_BKGS, sums_C.total_BKGS)


def _backward(ring: Ring, saved: Any, d_results: tuple[jax.Array, jax.Array]) -> Any:
    given, out_BTNV, max_C, total_C = saved
    q_BTNH, k_BSKH, _, _, _, shaping = given
    (q_C, queries_C), keys_C = _in_blocks(ring, *given[:5])
    own_C = q_C, queries_C, _ends(ring, k_BSKH, out_BTNV, d_results, max_C, total_C)

    def of_keys(own: Any, carry: Any, each: Any) -> tuple[Any, Any]:
        (q, queries, ends), ((k, v, keys), d_keys) = own, each

        def seen() -> Any:
            new = blockwise.gradients(ends, q, k, v, queries, keys, shaping, ring.visible)
            d_each = (new.q_BSKGH, new.shaping), (new.k_BTKH, new.v_BTKV)
            return jax.tree.map(jnp.add, (carry, d_keys), d_each)

        may = blockwise.may_see(queries, keys, ring.visible)
        return jax.lax.cond(may, seen, lambda: (carry, d_keys))

    def turn(carry: Any, _: None) -> tuple[Any, None]:
        keys_C, d_keys_C, d_q_C, d_shaping = carry

        def of_queries(carry: Any, each: Any) -> tuple[Any, jax.Array]:
            (d_keys_C, d_shaping), (own, d_q) = carry, each
            begin, others = (d_q, d_shaping), (keys_C, d_keys_C)
            end, d_keys_C = jax.lax.scan(functools.partial(of_keys, own), begin, others)
            return (d_keys_C, end[1]), end[0]

        sums, d_q_C = jax.lax.scan(of_queries, (d_keys_C, d_shaping), (own_C, d_q_C))
        return (ring.passed(keys_C), ring.passed(sums[0]), d_q_C, sums[1]), None

    begin = keys_C, _zeros(keys_C[:2]), _zeros(q_C), _zeros(shaping)
    (_, d_keys_C, d_q_C, d_shaping), _ = jax.lax.scan(turn, begin, None, length=ring.turns)
    if ring.turns < ring.devices:
        d_keys_C = ring.passed(d_keys_C, -ring.turns)  # Back to the devices that have the keys.
    d_keys = [_joined(x)[:, : k_BSKH.shape[1]] for x in d_keys_C]
    d_q = _joined(d_q_C)[:, : q_BTNH.shape[1]].reshape(q_BTNH.shape)
    d_each = (d.astype(x.dtype) for d, x in zip((d_q, *d_keys), given[:3], strict=True))
    return *d_each, None, None, d_shaping


_attend.defvjp(_forward, _backward)


def _in_blocks(
    ring: Ring,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKV: jax.Array,
    queries: Places,
    keys: Places,
) -> tuple[tuple[jax.Array, Places], tuple[jax.Array, jax.Array, Places]]:
    """Queries with their places, and keys and values with theirs, in blocks."""
    # Masks depend on no parameter. Without the barrier, JAX computes those of all blocks ahead of a
    # scan over layers, and keeps them.
    q_BTNH, queries, keys = jax.lax.optimization_barrier((q_BTNH, queries, keys))
    q_C, queries_C = _grouped(ring, q_BTNH, k_BSKH), blockwise.places_in_blocks(queries, ring.block)
    k_C, v_C = (blockwise.in_blocks(x, ring.block) for x in (k_BSKH, v_BSKV))
    return (q_C, queries_C), (k_C, v_C, blockwise.places_in_blocks(keys, ring.block))


def _ends(
    ring: Ring,
    k_BSKH: jax.Array,
    out_BTNV: jax.Array,
    d_results: tuple[jax.Array, jax.Array],
    max_C: jax.Array,
    total_C: jax.Array,
) -> Ends:
    d_out_BTNV, d_total_BTN = d_results
    product_BTNV = d_out_BTNV.astype(jnp.float32) * out_BTNV.astype(jnp.float32)
    shared_BTN1 = jnp.sum(product_BTNV, axis=-1, keepdims=True) - d_total_BTN[..., None]
    d_out_C, shared_C = (
        jnp.moveaxis(_grouped(ring, x, k_BSKH), 2, 4) for x in (d_out_BTNV, shared_BTN1)
    )
    return Ends(max_C, total_C, d_out_C, shared_C[..., 0])


def _zeros(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), tree)


def _grouped(ring: Ring, q_BTNH: jax.Array, k_BSKH: jax.Array) -> jax.Array:
    """Queries in blocks and groups that share a key: [C, B, block, K, G, H]."""
    examples, length, _, size = q_BTNH.shape
    q_BTKGH = q_BTNH.reshape(examples, length, k_BSKH.shape[2], -1, size)
    return blockwise.in_blocks(q_BTKGH, ring.block)


def _ungrouped(x_C: jax.Array, length: int) -> jax.Array:
    """[C, B, K, G, block, ...] -> [B, length, N, ...]."""
    x_BTKG = _joined(jnp.moveaxis(x_C, 4, 2))[:, :length]
    return x_BTKG.reshape(*x_BTKG.shape[:2], -1, *x_BTKG.shape[4:])


def _joined(x_C: jax.Array) -> jax.Array:
    """[C, B, block, ...] -> [B, C * block, ...]."""
    x_BC = jnp.moveaxis(x_C, 0, 1)
    return x_BC.reshape(len(x_BC), -1, *x_BC.shape[3:])
