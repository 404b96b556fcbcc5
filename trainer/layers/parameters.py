import math

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from trainer.layers.initialization import Initializer, NormalInit


class ParameterBox(nn.LogicallyPartitioned):
    """A new parameter with its logical axes.

    Attributes:
        decay: weight decay applies to it.
        in_axes: axes of the inputs, over which a product sums, counted from the end: a scanned
            stack adds axes in front. () for a table; None if the initializer does not know.
        out_axes: axes of the outputs, likewise. Axes in neither are experts or layers.
        std: standard deviation of its new values; None if the initializer does not know.
    """

    decay: bool = flax.struct.field(default=True, pytree_node=False)
    in_axes: tuple[int, ...] | None = flax.struct.field(default=None, pytree_node=False)
    out_axes: tuple[int, ...] | None = flax.struct.field(default=None, pytree_node=False)
    std: float | None = flax.struct.field(default=None, pytree_node=False)

    @property
    def num_inputs(self) -> int | None:
        """Number of terms of the sum that makes an output; 1 for a table, None if unknown."""
        if self.in_axes is None:
            return None
        return math.prod(self.value.shape[axis] for axis in self.in_axes)


def new_parameter(
    init: Initializer,
    key: jax.Array,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    decay: bool,
) -> ParameterBox:
    """Draws a float32 parameter, with all that its initializer knows."""
    value = init(key, shape, jnp.float32)
    if not isinstance(init, NormalInit):
        return ParameterBox(value, names=axes, decay=decay)
    return ParameterBox(
        value,
        names=axes,
        decay=decay,
        in_axes=init.in_axes(len(shape)),
        out_axes=init.out_axes(len(shape)),
        std=init.std(shape),
    )
