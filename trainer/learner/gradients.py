"""Norms of trees of arrays, layer by layer where a run is scanned, and clipping by them."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from trainer.learner.paths import keys, lengths, names

_TINY = 1e-12


def with_norm(tree: Any, most: jax.Array | float, norm: jax.Array) -> Any:
    """`tree`, whose norm is `norm`, scaled down to the norm `most` where it is above."""
    scale = jnp.minimum(1.0, most / jnp.maximum(norm, _TINY))
    return jax.tree.map(lambda x: x * scale, tree)


def with_single_norms(tree: Any, most: jax.Array | float) -> Any:
    """Each array of each layer scaled down to the norm `most` where it is above."""

    def clip(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
        norm = jnp.sqrt(jnp.sum(jnp.square(x), axes, keepdims=True))
        return x * jnp.minimum(1.0, most / jnp.maximum(norm, _TINY))

    return map_layers(clip, tree)


def with_single_rms(tree: Any, most: jax.Array | float) -> Any:
    """Each array of each layer scaled down to the root mean square `most` where it is above."""

    def clip(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
        rms = jnp.sqrt(jnp.mean(jnp.square(x), axes, keepdims=True))
        return x / jnp.maximum(1.0, rms / most)

    return map_layers(clip, tree)


def with_values(tree: Any, most: jax.Array | float) -> Any:
    """Each element clipped to [-most, most]."""
    return jax.tree.map(lambda x: jnp.clip(x, -most, most), tree)


def map_layers(function: Callable[[jax.Array, tuple[int, ...]], jax.Array], tree: Any) -> Any:
    """`function` of each array and the axes over which it is that of one layer."""

    def of(path: Any, x: jax.Array) -> jax.Array:
        return function(x, own_axes(keys(path), x))

    return jax.tree_util.tree_map_with_path(of, tree)


def own_axes(path: tuple[str, ...], x: jax.Array) -> tuple[int, ...]:
    """The axes of a stored parameter that it would have if its layers were not scanned."""
    return tuple(range(len(lengths(path)), x.ndim))


def norms(tree: Any) -> Iterator[tuple[str, jax.Array]]:
    """(name, norm) of each parameter of each layer; names are like `stack/layers_0/up/kernel`."""
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        at = keys(path)
        each = jnp.sqrt(jnp.sum(jnp.square(x), own_axes(at, x))).reshape(-1)
        yield from ((name, each[i]) for i, name in enumerate(names(at, '/')))
