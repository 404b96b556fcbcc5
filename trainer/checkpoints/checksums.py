from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}

_MAX_HOST_WORDS = 2**20
"""NumPy sums this many words in a twentieth of the time that XLA takes to compile the sums."""


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
    arrays = list(leaves.values())
    sums: Iterable[Any]
    if sum(array.size for array in arrays) <= _MAX_HOST_WORDS and all(map(_is_on_host, arrays)):
        sums = map(_host_checksum, arrays)
    else:
        sums = np.asarray(jax.device_get(_checksums(arrays)))
    return {name: int(each) for name, each in zip(leaves, sums, strict=True)}


def leaves_by_name(tree: Any) -> dict[str, Any]:
    """The arrays in a tree, by their paths as text."""
    return {name_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def name_of(path: Any) -> str:
    """The path of an array as text: `params.stack.layers_0.up`."""
    return jax.tree_util.keystr(path, simple=True, separator='.')


def _is_on_host(leaf: Any) -> bool:
    return (
        isinstance(leaf, jax.Array)
        and leaf.is_fully_addressable
        and all(device.platform == 'cpu' for device in leaf.devices())
    )


def _host_checksum(leaf: Any) -> np.uint32:
    array = np.ascontiguousarray(leaf)
    words = array.view(f'u{array.dtype.itemsize}').ravel().astype(np.uint32)
    factors = _odd(np.arange(words.size, dtype=np.uint32))
    total: np.uint32 = np.sum(words * factors, dtype=np.uint32)
    return total


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


def _odd(place: Any) -> Any:
    """A pseudorandom odd number (the finalizer of MurmurHash3, Appleby 2011)."""
    place = (place ^ (place >> 16)) * np.uint32(0x85EBCA6B)
    place = (place ^ (place >> 13)) * np.uint32(0xC2B2AE35)
    return (place ^ (place >> 16)) | np.uint32(1)
