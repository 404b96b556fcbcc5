import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
from flax.linen import initializers

Initializer = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]
"""Makes values of a key, a shape and a dtype."""

BATCH_AXES = ('experts', 'layers')
"""Logical axes along which a parameter is several ones: neither inputs nor outputs."""

Bias = Literal['none', 'zeros']
"""'zeros' adds a bias that starts at zero, 'none' adds none."""


@dataclasses.dataclass(frozen=True)
class NormalInit:
    """Initializer that draws from a normal distribution with a known standard deviation.

    Attributes:
        deviation: the standard deviation; None for 1 / sqrt(inputs).
        in_axis: axes of the inputs; () for a table, which is not multiplied. Axes that are named
            nowhere, as the height and width of a convolution, are axes of inputs, too.
        out_axis: axes of the outputs.
        batch_axis: axes of experts or layers, each of which has its own inputs and outputs.
            `Layer.param` adds those with a logical axis in `BATCH_AXES`.
    """

    deviation: float | None = None
    in_axis: int | Sequence[int] = -2
    out_axis: int | Sequence[int] = -1
    batch_axis: int | Sequence[int] = ()

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        if self.deviation is not None:
            return initializers.normal(self.deviation)(key, shape, dtype)
        inputs, outputs = self.in_axes(len(shape)), self.out_axes(len(shape))
        batch = _negative(self.batch_axis, len(shape))
        lecun = initializers.lecun_normal(in_axis=inputs, out_axis=outputs, batch_axis=batch)
        return lecun(key, shape, dtype)

    def of_axes(self, axes: Sequence[str | None]) -> 'NormalInit':
        """A copy that knows the batch axes among logical axes."""
        named = {axis - len(axes) for axis, name in enumerate(axes) if name in BATCH_AXES}
        batch = named | {*_negative(self.batch_axis, len(axes))}
        return dataclasses.replace(self, batch_axis=tuple(sorted(batch)))

    def fits(self, num_axes: int) -> bool:
        """False if the deviation depends on inputs that a shape of so few axes does not have."""
        num_own = num_axes - len(_negative(self.batch_axis, num_axes))
        return self.deviation is not None or num_own > 1

    def in_axes(self, num_axes: int) -> tuple[int, ...]:
        """The axes over which a product sums, counted from the end.

        Example:
            >>> NormalInit().in_axes(4), NormalInit(batch_axis=0).in_axes(3)
            ((-4, -3, -2), (-2,))
        """
        others = {*self.out_axes(num_axes), *_negative(self.batch_axis, num_axes)}
        return tuple(axis for axis in range(-num_axes, 0) if axis not in others)

    def out_axes(self, num_axes: int) -> tuple[int, ...]:
        """The axes of the outputs, counted from the end."""
        batch = _negative(self.batch_axis, num_axes)
        return tuple(axis for axis in _negative(self.out_axis, num_axes) if axis not in batch)

    def num_inputs(self, shape: tuple[int, ...]) -> int:
        """Number of terms of the sum that makes an output.

        Example:
            >>> NormalInit(in_axis=0, out_axis=(1, 2)).num_inputs((64, 4, 16))
            64
        """
        return math.prod(shape[axis] for axis in self.in_axes(len(shape)))

    def std(self, shape: tuple[int, ...]) -> float:
        """The standard deviation of the values of a new parameter."""
        own = self.deviation
        return 1 / math.sqrt(self.num_inputs(shape)) if own is None else own


def table_init(std: float) -> NormalInit:
    """Draws a table of vectors from a normal distribution."""
    return NormalInit(std, in_axis=(), out_axis=(0, 1))


def kernel_init(
    std: float | None,
    in_axis: int | Sequence[int] = -2,
    out_axis: int | Sequence[int] = -1,
    batch_axis: int | Sequence[int] = (),
) -> NormalInit:
    """Draws kernels from a normal distribution; `std` None stands for 1 / sqrt(inputs)."""
    return NormalInit(std, in_axis, out_axis, batch_axis)


def _negative(axes: int | Sequence[int], num_axes: int) -> tuple[int, ...]:
    """Axes counted from the end, so that they stay where others are added in front."""
    each = [axes] if isinstance(axes, int) else axes
    return tuple(sorted(axis - num_axes if axis >= 0 else axis for axis in each))
