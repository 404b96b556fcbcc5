"""Exchange of tokens with the devices of their experts.

Each device routes its own tokens. An all-to-all over the mesh axes of `experts` sends each token
to the devices of its experts, and another one returns the results (Lepikhin et al. 2021). So no
device has all tokens, or the kernels of all experts.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec

from trainer.layers.grouped_product import Kernels
from trainer.mesh import Arrangement


class Exchange(NamedTuple):
    """The mesh axes of a layer with experts.

    Attributes:
        mesh: the mesh of JAX.
        batch: axes that divide the examples.
        length: axes that divide the positions.
        experts: axes that divide experts; they are among those of `batch`.
        hidden: axes that divide the hidden width of an expert, and no tokens.
    """

    mesh: Any
    batch: tuple[str, ...]
    length: tuple[str, ...]
    experts: tuple[str, ...]
    hidden: tuple[str, ...]

    @classmethod
    def of(cls, mesh: Arrangement | None, shape: tuple[int, ...], what: str) -> 'Exchange | None':
        """The exchange of activations [B, T, D]; None where the compiler divides the layer.

        That is so on one device, on devices that are not there, in the stages of a pipeline, and
        where an axis divides experts but no examples.

        Raises:
            UserError: the activation does not divide; `what` names it.
        """
        if mesh is None or isinstance(mesh.mesh, AbstractMesh) or mesh.mesh.size == 1:
            return None  # JAX 0.10 has no gradient of a `shard_map` inside of that of a pipeline.
        spec = mesh.activation_sharding(('batch', 'length', 'features'), shape, what).spec
        each = *map(_axes, tuple(spec)[:2]), mesh.parts('experts')[1], mesh.parts('mlp')[1]
        batch, length, experts, hidden = (
            tuple(axis for axis in axes if mesh.shape[axis] > 1) for axes in each
        )
        if not {*experts} <= {*batch}:
            return None
        hidden = tuple(axis for axis in hidden if axis not in (*batch, *length))
        return cls(mesh.mesh, batch, length, experts, hidden)

    def parts(self, axes: tuple[str, ...]) -> int:
        """Number of parts that mesh axes make."""
        return math.prod(self.mesh.shape[axis] for axis in axes)

    @property
    def tokens(self) -> PartitionSpec:
        """Mesh axes of an array [B, T, …]."""
        return PartitionSpec(self.batch, self.length)

    @property
    def rows(self) -> PartitionSpec:
        """Mesh axes of the places of experts, [B, E, C, D]."""
        others = tuple(axis for axis in self.batch if axis not in self.experts)
        return PartitionSpec(others, self.experts, self.length)

    def kernel(self, name: str) -> PartitionSpec:
        """Mesh axes of a kernel [E, D, F], or [E, F, D] for 'down'."""
        features = (self.hidden, None) if name == 'down' else (None, self.hidden)
        return PartitionSpec(self.experts, *features)

    def mapped(self, function: Callable[..., Any], given: Any, result: Any) -> Callable[..., Any]:
        """Runs `function` on each device, on its parts of arrays and with collectives."""
        return jax.shard_map(function, mesh=self.mesh, in_specs=given, out_specs=result)

    def varying(self, x_ND: jax.Array, kernels: Kernels) -> tuple[jax.Array, Kernels]:
        """Marks arrays as different on devices, so that gradients are summed over these."""
        axes = tuple(axis for axis in (*self.batch, *self.length) if axis not in self.experts)
        return _varying(x_ND, self.hidden), jax.tree.map(lambda w: _varying(w, axes), kernels)

    def summed(self, tree: Any) -> Any:
        """Sums values of the tokens of all devices."""
        return lax.psum(tree, (*self.batch, *self.length))

    def before(self, counts_BE: jax.Array) -> jax.Array | None:
        """Sums counts of the devices with earlier positions; None if positions are not divided."""
        if not self.length:
            return None
        all_SBE = lax.all_gather(counts_BE, self.length)
        is_before_S = jnp.arange(len(all_SBE)) < lax.axis_index(self.length)
        return jnp.sum(all_SBE * is_before_S[:, None, None], axis=0)

    def sent(self, given_BECD: jax.Array) -> jax.Array:
        """Moves tokens in the places of all experts to the devices of these experts.

        Devices with other positions of the same rows fill other places, and share the products.
        """
        if self.length:
            given_BECD = lax.psum_scatter(given_BECD, self.length, scatter_dimension=2, tiled=True)
        if self.experts:
            given_BECD = lax.all_to_all(given_BECD, self.experts, 1, 0, tiled=True)
        return given_BECD

    def returned(self, y_BECD: jax.Array) -> jax.Array:
        """The inverse of `sent`: results of all experts in their places."""
        if self.experts:
            y_BECD = lax.all_to_all(y_BECD, self.experts, 0, 1, tiled=True)
        if self.length:
            y_BECD = lax.all_gather(y_BECD, self.length, axis=2, tiled=True)
        return y_BECD


def _axes(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def _varying(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    if axes:
        x = lax.pcast(x, axes, to='varying')
    return x
