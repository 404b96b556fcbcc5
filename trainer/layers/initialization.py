from collections.abc import Sequence
from typing import Literal

from flax.linen import initializers

from trainer.layers.base import Initializer

Bias = Literal['none', 'zeros']
"""'zeros' adds a bias that starts at zero, 'none' adds none."""


def kernel_init(
    std: float | None, in_axis: int | Sequence[int] = -2, out_axis: int | Sequence[int] = -1
) -> Initializer:
    """Draws kernels from a normal distribution; `std` None stands for 1 / sqrt(inputs)."""
    if std is not None:
        return initializers.normal(std)
    return initializers.lecun_normal(in_axis=in_axis, out_axis=out_axis)
