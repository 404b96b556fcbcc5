import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.symbolic.component import Component, require_above_zero, require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue

Draw = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]
"""Makes values of a key, a shape and a dtype."""

BATCH_AXES = ('experts', 'layers')
"""Logical axes along which a parameter is several ones: neither inputs nor outputs."""

Bias = Literal['none', 'zeros']
"""'zeros' adds a bias that starts at zero, 'none' adds none."""

Fan = Literal['none', 'inputs', 'outputs', 'average', 'first']

_OF_TRUNCATED = 0.87962566103423978
"""Standard deviation of a standard normal distribution without all beyond -2 and 2."""


@dataclasses.dataclass(frozen=True)
class KernelInit:
    """An initializer with the axes of a kernel.

    Attributes:
        init: the distribution; None for a normal one without its tails (He et al. 2015).
        in_axis: axes of the inputs; () for a table, which is not multiplied. Axes that are named
            nowhere, as the height and width of a convolution, are axes of inputs, too.
        out_axis: axes of the outputs.
        batch_axis: axes of experts or layers, each of which has its own inputs and outputs.
            `Layer.param` adds those with a logical axis in `BATCH_AXES`.
        gain: variance of the default distribution, as a multiple of 1 / inputs.
    """

    init: 'Initializer | None' = None
    in_axis: int | Sequence[int] = -2
    out_axis: int | Sequence[int] = -1
    batch_axis: int | Sequence[int] = ()
    gain: float = 1.0

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        if self.init is not None:
            return self.init.draw(key, shape, dtype, self)
        inputs, outputs = self.in_axes(len(shape)), self.out_axes(len(shape))
        batch = _negative(self.batch_axis, len(shape))
        normal = initializers.variance_scaling(
            self.gain, 'fan_in', 'truncated_normal', inputs, outputs, batch
        )
        return normal(key, shape, dtype)

    def of_axes(self, axes: Sequence[str | None]) -> 'KernelInit':
        """A copy that knows the batch axes among logical axes."""
        named = {axis - len(axes) for axis, name in enumerate(axes) if name in BATCH_AXES}
        batch = named | {*_negative(self.batch_axis, len(axes))}
        return dataclasses.replace(self, batch_axis=tuple(sorted(batch)))

    def fits(self, num_axes: int) -> bool:
        """False if the deviation depends on inputs that a shape of so few axes does not have."""
        num_own = num_axes - len(_negative(self.batch_axis, num_axes))
        return num_own > 1 or (self.init is not None and not self.init.needs_fans)

    def in_axes(self, num_axes: int) -> tuple[int, ...]:
        """The axes over which a product sums, counted from the end.

        Example:
            >>> KernelInit().in_axes(4), KernelInit(batch_axis=0).in_axes(3)
            ((-4, -3, -2), (-2,))
        """
        others = {*self.out_axes(num_axes), *_negative(self.batch_axis, num_axes)}
        return tuple(axis for axis in range(-num_axes, 0) if axis not in others)

    def out_axes(self, num_axes: int) -> tuple[int, ...]:
        """The axes of the outputs, counted from the end."""
        batch = _negative(self.batch_axis, num_axes)
        return tuple(axis for axis in _negative(self.out_axis, num_axes) if axis not in batch)

    def fan(self, shape: tuple[int, ...], fan: Fan) -> float:
        """A size of a kernel.

        The inputs are the terms of the sum that makes an output. The outputs are counted likewise:
        as terms with one input, the positions of a convolution included.

        Example:
            >>> init = KernelInit(in_axis=0, out_axis=(1, 2))
            >>> [init.fan((32, 4, 16), fan) for fan in ('inputs', 'outputs', 'average', 'first')]
            [32.0, 64.0, 48.0, 32.0]
        """

        def size(axes: Iterable[int]) -> float:
            return float(math.prod(shape[axis] for axis in axes))

        inputs, outputs = self.in_axes(len(shape)), self.out_axes(len(shape))
        window = {*inputs} - {*_negative(self.in_axis, len(shape))}
        num_outputs = size(outputs) * size(window)
        fans: dict[Fan, float] = {
            'none': 1.0,
            'inputs': size(inputs),
            'outputs': num_outputs,
            'average': (size(inputs) + num_outputs) / 2,
            'first': size(sorted({*inputs, *outputs})[:1]),
        }
        return fans[fan]

    def std(self, shape: tuple[int, ...]) -> float | None:
        """The standard deviation of the values of a new parameter; None if it is unknown."""
        if self.init is not None:
            return self.init.std(shape, self)
        return math.sqrt(self.gain / self.fan(shape, 'inputs'))


class Initializer(Component):
    """Distribution of new kernels or tables. The layer knows which axes are inputs and outputs."""

    @property
    def needs_fans(self) -> bool:
        """True if vectors, which have no inputs and outputs, cannot be drawn."""
        return False

    def draw(
        self, key: jax.Array, shape: tuple[int, ...], dtype: Any, kernel: KernelInit
    ) -> jax.Array:
        raise NotImplementedError(type(self).__name__)

    def std(self, shape: tuple[int, ...], kernel: KernelInit) -> float | None:
        """The standard deviation of the values; None if it is unknown."""
        return None


class Scaled(Initializer):
    """A distribution times `scale`, divided by the root of a size of the kernel.

    Attributes:
        scale: multiplies a distribution of deviation 1, or one between -1 and 1.
        root_of: the size: number of 'inputs' or of 'outputs', their 'average', the 'first' axis.
            'none' divides by nothing.
    """

    scale: float = 1.0
    root_of: Fan = 'none'

    def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
        plain = UsualValue(0.02, 0.006, 0.03, 'GPT-2, BERT; 0.006: DeepSeek-V3')
        by_fan = UsualValue(1.0, 0.7, 1.42, 'LeCun et al. 1998; the root of 2: He et al. 2015')
        scale = plain if self.sym_getattr('root_of') == 'none' else by_fan
        return super().usual_values(experiment) | {'scale': scale}

    def check(self) -> None:
        require_above_zero(self, 'scale')

    @property
    def needs_fans(self) -> bool:
        return self.root_of != 'none'

    def factor(self, shape: tuple[int, ...], kernel: KernelInit) -> float:
        return self.scale / math.sqrt(kernel.fan(shape, self.root_of))

    def draw(
        self, key: jax.Array, shape: tuple[int, ...], dtype: Any, kernel: KernelInit
    ) -> jax.Array:
        return self.standard(key, shape, dtype) * self.factor(shape, kernel)

    def standard(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draws from the distribution before it is scaled."""
        raise NotImplementedError(type(self).__name__)


class Gaussian(Scaled):
    """A normal distribution; `scale` is its standard deviation.

    Example:
        >>> Gaussian(2.0, root_of='inputs').std((16, 8), KernelInit())
        0.5
    """

    def standard(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jax.random.normal(key, shape, dtype)

    def std(self, shape: tuple[int, ...], kernel: KernelInit) -> float:
        return self.factor(shape, kernel)


class TruncatedGaussian(Scaled):
    """A normal distribution without its tails, beyond 2 * `scale`."""

    def standard(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)

    def std(self, shape: tuple[int, ...], kernel: KernelInit) -> float:
        return _OF_TRUNCATED * self.factor(shape, kernel)


class Uniform(Scaled):
    """A uniform distribution between -`scale` and `scale`."""

    def standard(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -1.0, 1.0)

    def std(self, shape: tuple[int, ...], kernel: KernelInit) -> float:
        return self.factor(shape, kernel) / math.sqrt(3)


class Xavier(Uniform):
    """Uniform between ±scale * sqrt(6 / (inputs + outputs)). Glorot & Bengio 2010.

    Attributes:
        depth: number of residual blocks, to whose power of -1 / (2 * layers_per_block) values
            are multiplied (Fixup, Zhang et al. 2019). 1 for none.
        layers_per_block: layers of a residual block.
    """

    root_of: Fan = 'average'
    depth: int = 1
    layers_per_block: int = 1

    def check(self) -> None:
        super().check()
        require_positive(self, 'depth', 'layers_per_block')

    def factor(self, shape: tuple[int, ...], kernel: KernelInit) -> float:
        fixup = self.depth ** (-1 / (2 * self.layers_per_block))
        return math.sqrt(3) * fixup * super().factor(shape, kernel)


class Filled(Initializer):
    """One value everywhere.

    Attributes:
        value: of all entries.
    """

    value: float = 0.0

    def draw(
        self, key: jax.Array, shape: tuple[int, ...], dtype: Any, kernel: KernelInit
    ) -> jax.Array:
        return jnp.full(shape, self.value, dtype)


class DeltaOrthogonal(Initializer):
    """An orthogonal matrix in the middle of a convolution, 0 elsewhere. Xiao et al. 2018.

    Attributes:
        scale: multiplies the matrix.
    """

    scale: float = 1.0

    def draw(
        self, key: jax.Array, shape: tuple[int, ...], dtype: Any, kernel: KernelInit
    ) -> jax.Array:
        if not 3 <= len(shape) <= 5 or shape[-2] > shape[-1]:
            raise UserError(
                f'{self.sym_path}: DeltaOrthogonal is for convolutions with at least as many '
                f'outputs as inputs, and this kernel is {tuple(shape)}'
            )
        return initializers.delta_orthogonal(self.scale)(key, shape, dtype)


def table_init(init: Initializer) -> KernelInit:
    """Draws a table of vectors."""
    return KernelInit(init, in_axis=(), out_axis=(0, 1))


def kernel_init(
    init: Initializer | None,
    in_axis: int | Sequence[int] = -2,
    out_axis: int | Sequence[int] = -1,
    batch_axis: int | Sequence[int] = (),
) -> KernelInit:
    """Draws kernels; `init` None has the standard deviation 1 / sqrt(inputs)."""
    return KernelInit(init, in_axis, out_axis, batch_axis)


def _negative(axes: int | Sequence[int], num_axes: int) -> tuple[int, ...]:
    """Axes counted from the end, so that they stay where others are added in front."""
    each = [axes] if isinstance(axes, int) else axes
    return tuple(sorted(axis - num_axes if axis >= 0 else axis for axis in each))
