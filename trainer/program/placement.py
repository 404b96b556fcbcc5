"""Batches of a host as arrays on the devices of a mesh."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from trainer import mesh as mesh_lib
from trainer.program.step_functions import ElementSpec


class Placement:
    """Puts batches on a mesh, sharded by `trainer.mesh.feature_spec`.

    Attributes:
        data_shard: (number of shards of a batch, index of the shard of this process).
    """

    def __init__(self, mesh: jax.sharding.Mesh) -> None:
        self._mesh = mesh
        self.data_shard = mesh_lib.data_shard(mesh)

    def put(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Makes global arrays of the batch of a host."""
        return self._put(batch, {name: self._place(array) for name, array in batch.items()})

    def put_several(self, batches: Sequence[Mapping[str, np.ndarray]]) -> dict[str, jax.Array]:
        """Makes global arrays of batches of a host, with a first axis of several."""
        if len(batches) == 1:
            return self.put(batches[0])
        stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
        count = len(batches)
        return self._put(
            stacked, {name: self._place(array, count) for name, array in batches[0].items()}
        )

    def abstract(self, spec: ElementSpec, count: int = 1) -> dict[str, jax.ShapeDtypeStruct]:
        """Makes the shapes of the result of `put`, or of `put_several` for several batches."""
        shapes = {}
        for name, each in spec.items():
            shape, at = self._place(each, count)
            dtype = jax.dtypes.canonicalize_dtype(each.dtype)
            shapes[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=at)
        return shapes

    def _put(
        self, arrays: Mapping[str, np.ndarray], places: Mapping[str, tuple[Any, NamedSharding]]
    ) -> dict[str, jax.Array]:
        if jax.process_count() == 1:  # One call for all arrays takes a third of the time.
            placed: dict[str, jax.Array] = jax.device_put(
                dict(arrays), {name: at for name, (_, at) in places.items()}
            )
            return placed
        return {
            name: jax.make_array_from_process_local_data(at, arrays[name], shape)
            for name, (shape, at) in places.items()
        }

    def _place(self, array: Any, count: int = 1) -> tuple[tuple[int, ...], NamedSharding]:
        # Each process has all positions of its examples, for any mesh.
        shape = (array.shape[0] * self.data_shard[0], *array.shape[1:])
        spec = mesh_lib.feature_spec(len(shape))
        if count > 1:
            shape, spec = (count, *shape), PartitionSpec(None, *spec)
        return shape, NamedSharding(self._mesh, spec)
