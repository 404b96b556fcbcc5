from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint.experimental.v1 as ocp
from etils import epath

from trainer.checkpoints.checkpoint import reason_of
from trainer.checkpoints.checksums import leaves_by_name, name_of
from trainer.checkpoints.manifest import Manifest
from trainer.symbolic.errors import UserError


class CheckpointReader:
    """Reads the manifest, without the arrays; raises UserError if that fails."""

    def __init__(self, checkpoint: epath.Path) -> None:
        """Reads the manifest, without the arrays; raises UserError if that fails."""
        self.checkpoint = checkpoint
        try:
            metadata = ocp.checkpointables_metadata(checkpoint)
            self._manifest = Manifest.from_json(checkpoint, metadata.custom_metadata)
            self._tree: Any = metadata.metadata['state']
        except UserError:
            raise
        except Exception as error:
            raise self._unreadable(error) from error
        self.progress = self._manifest.progress
        self.frozen = self._manifest.frozen
        arrays = self._manifest.arrays
        self.shapes = {name: tuple(shape) for name, (shape, _, _) in arrays.items()}
        self.dtypes = {name: dtype for name, (_, dtype, _) in arrays.items()}

    def load(self, shardings: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Loads arrays by name, with given shardings; raises UserError if they are damaged."""

        def requested(path: Any, _: Any) -> Any:
            name = name_of(path)
            if name not in shardings:
                return None
            shape, dtype = self.shapes[name], jax.numpy.dtype(self.dtypes[name])
            return jax.ShapeDtypeStruct(shape, dtype, sharding=shardings[name])

        if not shardings:
            return {}
        context = ocp.Context()
        context.pytree.loading.partial_load = True
        try:
            tree = jax.tree_util.tree_map_with_path(requested, self._tree)
            with context:
                loaded = ocp.load_checkpointables(self.checkpoint, {'state': _pruned(tree)})
            self._manifest.verify(loaded['state'])
        except Exception as error:
            raise self._unreadable(error) from error
        found = leaves_by_name(loaded['state'])
        assert found.keys() == shardings.keys()
        return found

    def _unreadable(self, error: Exception) -> UserError:
        return UserError(f'{self.checkpoint} cannot be read ({reason_of(error)})')


def _pruned(tree: Any) -> Any:
    """Removes None from a tree; items of lists keep their index."""
    if isinstance(tree, Mapping):
        found = {name: _pruned(child) for name, child in tree.items()}
        return {name: child for name, child in found.items() if child is not None} or None
    if isinstance(tree, list | tuple):
        children = [_pruned(child) for child in tree]
        return None if all(child is None for child in children) else children
    return tree
