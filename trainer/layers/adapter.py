"""Modules of flax as layers: what the adapters for linen and for nnx have in common."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trainer import mesh as mesh_lib
from trainer.layers.base import NON_TRAINABLE, PARAMS, Layer, ParameterBox, current_frame, fold
from trainer.symbolic.errors import UserError

Tree = dict[str, Any]


class FlaxAdapter(Layer):
    """Base of adapters. A subclass of one says in `make` what its module is.

    The fields of the subclass are the module's configuration: they are searched, overridden and
    written down as those of any component. They are structure, since flax wants Python numbers:
    none of them is a `Number`.

    The module's parameters stand where this layer does. They are divided over the mesh by the
    logical axes that the module gives them (`trainer.mesh.RULES`) and replicated without; weight
    decay applies to those of two axes or more. All other variables, as running statistics, are
    kept with them and not trained. Floats are cast to what layers compute in, so a module that
    sets no dtype of its own computes in that.
    """

    def forward(self, *args: Any) -> Any:
        return self.run(*args)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module. For `forward`s that call it in another way."""
        raise NotImplementedError(type(self).__name__)

    def key(self, stream: str) -> jax.Array:
        """A random key. Where nothing random is asked for, as in evaluation, always the same."""
        keys = current_frame().keys
        if stream in keys:
            return keys[PARAMS] if stream == PARAMS else self.rng(stream)
        return fold(keys[PARAMS] if PARAMS in keys else jax.random.key(0), stream)

    def kept(self, collection: str) -> Tree:
        """The variables of this layer, cast; {} while they are not there yet."""
        kept: Any = nn.meta.unbox(current_frame().module.variables.get(collection, {}))
        return jax.tree.map(self._cast, dict(kept)) if collection == PARAMS else dict(kept)

    def keep(self, params: Tree, axes: Tree, rest: Tree) -> None:
        """Stores new variables.

        Args:
            params: parameters by the paths that they have in the module.
            axes: a tree like it, of the logical axes of each, or None.
            rest: all other variables.

        Raises:
            UserError: the axes of a parameter are not known.
        """
        boxes = jax.tree_util.tree_map_with_path(self._boxed, params, axes)
        for collection, tree in ((PARAMS, boxes), (NON_TRAINABLE, rest)):
            self.put(collection, tree)

    def put(self, collection: str, tree: Mapping[str, Any]) -> None:
        """Stores variables of one collection."""
        for name, value in tree.items():
            current_frame().module.put_variable(collection, name, value)

    def _cast(self, leaf: jax.Array) -> jax.Array:
        return leaf.astype(self.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def _boxed(self, path: Any, value: jax.Array, axes: tuple[str | None, ...] | None) -> Any:
        names = (None,) * value.ndim if axes is None else tuple(axes)
        try:
            mesh_lib.partition_spec(names)
        except ValueError as error:
            where = '.'.join(str(part.key) for part in path)
            raise UserError(f'{self.sym_path}: parameter {where} of its module: {error}') from error
        return ParameterBox(value, names=names, decay=value.ndim > 1)
