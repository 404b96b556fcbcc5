import math
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from trainer.layers.initialization import Draw, KernelInit


class MatrixAxes(NamedTuple):
    """The axes of a hidden matrix, counted from the end.

    Attributes:
        inputs: over which a product sums.
        outputs: of the results.
        heads: of attention heads, among the inputs or the outputs.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    heads: tuple[int, ...] = ()

    def of_head(self) -> 'MatrixAxes':
        """The axes of the matrix of one head.

        Example:
            >>> MatrixAxes((-3,), (-2, -1), heads=(-2,)).of_head()
            MatrixAxes(inputs=(-3,), outputs=(-1,), heads=())
        """
        inputs, outputs = (
            tuple(axis for axis in axes if axis not in self.heads)
            for axes in (self.inputs, self.outputs)
        )
        return MatrixAxes(inputs, outputs) if inputs and outputs else self


class ParameterBox(nn.LogicallyPartitioned):
    """A new parameter with its logical axes.

    Attributes:
        decay: weight decay applies to it.
        in_axes: axes of the inputs, over which a product sums, counted from the end: a scanned
            stack adds axes in front. () for a table; None if the initializer does not know.
        out_axes: axes of the outputs, likewise. Axes in neither are experts or layers.
        std: standard deviation of its new values; None if the initializer does not know.
        is_output: it makes the outputs of the model, or the scores of a router.
        used: share of it that computes the result of a token, as that of a few of all experts.
    """

    decay: bool = flax.struct.field(default=True, pytree_node=False)
    in_axes: tuple[int, ...] | None = flax.struct.field(default=None, pytree_node=False)
    out_axes: tuple[int, ...] | None = flax.struct.field(default=None, pytree_node=False)
    std: float | None = flax.struct.field(default=None, pytree_node=False)
    is_output: bool = flax.struct.field(default=False, pytree_node=False)
    used: float = flax.struct.field(default=1.0, pytree_node=False)

    @property
    def num_inputs(self) -> int | None:
        """Number of terms of the sum that makes an output; 1 for a table, None if unknown."""
        if self.in_axes is None:
            return None
        return math.prod(self.value.shape[axis] for axis in self.in_axes)

    @property
    def matrix_axes(self) -> MatrixAxes | None:
        """The axes of a hidden matrix; None for other parameters.

        Tables, vectors, kernels that make the outputs of the model or the scores of a router, and
        kernels of unknown axes are no hidden matrices.
        """
        is_output = self.is_output or bool({'vocab', 'classes'} & {*self.names})
        if is_output or not self.in_axes or not self.out_axes:
            return None
        num_axes = len(self.names)
        heads = tuple(at - num_axes for at, name in enumerate(self.names) if name == 'heads')
        return MatrixAxes(self.in_axes, self.out_axes, heads)


def new_parameter(
    init: Draw,
    key: jax.Array,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    dtype: Any,
    **traits: Any,
) -> ParameterBox:
    """Draws a parameter in float32, rounds it to `dtype`, and adds all that is known of it."""
    value = jnp.asarray(init(key, shape, jnp.float32), dtype)
    if not isinstance(init, KernelInit):
        return ParameterBox(value, names=axes, **traits)
    return ParameterBox(
        value,
        names=axes,
        in_axes=init.in_axes(len(shape)),
        out_axes=init.out_axes(len(shape)),
        std=init.std(shape),
        **traits,
    )


def has_one_size_each(equation: str, *shapes: tuple[int, ...]) -> bool:
    """True if each axis of an equation of einsum, which would repeat an axis of size 1, has a size.

    Example:
        >>> has_one_size_each('...d,df->...f', (2, 3, 4), (4, 5))
        True
        >>> has_one_size_each('...d,df->...f', (2, 3, 1), (4, 5))
        False
    """
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.split('->')[0].split(','), shapes, strict=True):
        before, _, after = term.strip().partition('...')
        last = shape[len(shape) - len(after) :]
        for name, size in (*zip(before, shape, strict=False), *zip(after, last, strict=False)):
            if sizes.setdefault(name, size) != size:
                return False
    return True
