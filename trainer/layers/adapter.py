import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trainer.layers.base import NON_TRAINABLE, PARAMS, Layer, current_frame, fold
from trainer.layers.parameters import ParameterBox

Tree = dict[str, Any]

_BIAS_OR_SCALE = re.compile(r'(.*_)?(bias|scale|beta|gamma)\d*|bias_\w+')


class FlaxAdapter(Layer):
    """Base of adapters of flax modules (linen and nnx). A subclass creates its module in `make`.

    The fields of the subclass configure the module. They are searched, overridden and saved like
    those of any component. Flax needs Python numbers, so none of the fields is a `Number`.

    The module's parameters have the path of this layer. They are sharded by the logical axes that
    the module gives them (`trainer.mesh.RULES`), and replicated without. Weight decay spares
    vectors, biases and scales: see `decays`. All other variables, such as running statistics, are
    stored with them and not trained. Floats are cast to the dtype of computations.

    Each random stream of the module, under any name, has a new key in each training step, and a
    constant one in evaluation.
    """

    def forward(self, *args: Any) -> Any:
        return self.run(*args)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module. For a `forward` with other arguments."""
        raise NotImplementedError(type(self).__name__)

    def decays(self, path: tuple[str, ...], value: jax.Array) -> bool:
        """True for a parameter of the module that weight decay applies to.

        Layers spare biases and scales, also those with an axis of heads or of stacked layers. So
        their names decide.
        """
        return value.ndim > 1 and not _BIAS_OR_SCALE.fullmatch(path[-1])

    def key(self, stream: str) -> jax.Array:
        """A random key; a constant one where the pass has no such stream, as in evaluation."""
        keys = current_frame().keys
        if stream in keys:
            return keys[PARAMS] if stream == PARAMS else self.rng(stream)
        return fold(keys[PARAMS] if PARAMS in keys else jax.random.key(0), stream)

    def stored(self, collection: str) -> Tree:
        """The variables of this layer, cast; {} before initialization."""
        stored: Any = nn.meta.unbox(current_frame().module.variables.get(collection, {}))
        return jax.tree.map(self._cast, dict(stored)) if collection == PARAMS else dict(stored)

    def store(self, params: Tree, axes: Tree, rest: Tree) -> None:
        """Stores new variables.

        Args:
            params: parameters by their paths in the module.
            axes: a tree of the logical axes of each, or None.
            rest: all other variables.
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
        keys = tuple(str(part.key) for part in path)
        return ParameterBox(value, names=names, decay=self.decays(keys, value))
