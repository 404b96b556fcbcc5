from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def checksums(tree: Any) -> dict[str, int]:
    """Computes a checksum of each array, by its path.

    A checksum is a sum over the words of the array, modulo 2^32. Each word has an odd factor that
    depends on its position. The sum therefore detects every change of one word, and misses changes
    of several words with probability 2^-32. It does not depend on the sharding of the array.

    Example:
        >>> checksums({'w': jnp.array([1.0, 2.0])}) == checksums({'w': jnp.array([2.0, 1.0])})
        False
    """
    leaves = leaves_by_name(tree)
    if not leaves:
        return {}
    sums = np.asarray(jax.device_get(_checksums(list(leaves.values()))))
    return {name: int(each) for name, each in zip(leaves, sums, strict=True)}


def leaves_by_name(tree: Any) -> dict[str, Any]:
    """The arrays in a tree, by their paths as text."""
    return {name_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def name_of(path: Any) -> str:
    """The path of an array as text: `params.stack.layers_0.up`."""
    return jax.tree_util.keystr(path, simple=True, separator='.')


@jax.jit
def _checksums(leaves: list[jax.Array]) -> jax.Array:
    return jnp.stack([_checksum(leaf) for leaf in leaves])


def _checksum(leaf: jax.Array) -> jax.Array:
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    words = jax.lax.bitcast_convert_type(leaf, _WORDS[leaf.dtype.itemsize]).astype(jnp.uint32)
    place = jnp.zeros(leaf.shape, jnp.uint32)
    for axis, size in enumerate(leaf.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
    return jnp.sum(words * _odd(place), dtype=jnp.uint32)


def _odd(place: jax.Array) -> jax.Array:
    """A pseudorandom odd number (the finalizer of MurmurHash3, Appleby 2011)."""
    place = (place ^ (place >> 16)) * jnp.uint32(0x85EBCA6B)
    place = (place ^ (place >> 13)) * jnp.uint32(0xC2B2AE35)
    return (place ^ (place >> 16)) | jnp.uint32(1)
