import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
from flax.linen import initializers

Bias = Literal['none', 'zeros']
"""'zeros' adds a bias that starts at zero, 'none' adds none."""


@dataclasses.dataclass(frozen=True)
class NormalInit:
    """Initializer that draws from a normal distribution with a known standard deviation.

    Attributes:
        deviation: the standard deviation; None for 1 / sqrt(inputs).
        in_axis: axes of the inputs; () for a table, which is not multiplied.
        out_axis: axes of the outputs.
    """

    deviation: float | None = None
    in_axis: int | Sequence[int] = -2
    out_axis: int | Sequence[int] = -1

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        if self.deviation is not None:
            return initializers.normal(self.deviation)(key, shape, dtype)
        lecun = initializers.lecun_normal(in_axis=self.in_axis, out_axis=self.out_axis)
        return lecun(key, shape, dtype)

    def num_inputs(self, shape: tuple[int, ...]) -> int:
        """Number of terms of the sum that makes an output.

        Example:
            >>> NormalInit(in_axis=0, out_axis=(1, 2)).num_inputs((64, 4, 16))
            64
        """
        axes = [self.out_axis] if isinstance(self.out_axis, int) else self.out_axis
        return math.prod(shape) // math.prod(shape[axis] for axis in axes)

    def std(self, shape: tuple[int, ...]) -> float:
        """The standard deviation of the values of a new parameter."""
        own = self.deviation
        return 1 / math.sqrt(self.num_inputs(shape)) if own is None else own


def table_init(std: float) -> NormalInit:
    """Draws a table of vectors from a normal distribution."""
    return NormalInit(std, in_axis=(), out_axis=(0, 1))


def kernel_init(
    std: float | None, in_axis: int | Sequence[int] = -2, out_axis: int | Sequence[int] = -1
) -> NormalInit:
    """Draws kernels from a normal distribution; `std` None stands for 1 / sqrt(inputs)."""
    return NormalInit(std, in_axis, out_axis)
