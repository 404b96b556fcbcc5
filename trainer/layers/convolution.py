from typing import Literal

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.layers.base import Layer
from trainer.layers.initialization import Initializer, KernelInit
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import UserError

Padding = Literal['SAME', 'VALID']


class Conv2D(Layer):
    """Convolution of images: [B, H, W, C] -> [B, H', W', channels]. LeCun et al. 1998.

    Attributes:
        channels: of the result.
        kernel_size: height and width of the kernel, in pixels.
        strides: steps of the kernel downwards and to the right, in pixels.
        padding: 'SAME' keeps the size (divided by the strides), 'VALID' stays inside the image.
        groups: number of groups of channels, each convolved by itself (Krizhevsky et al. 2012);
            None for a depthwise convolution, one group for each input channel.
        bias: 'zeros' adds a bias that starts at zero, 'none' adds none.
        axes: logical axes of the kernel's channels, input channels first.
        init: of a new kernel; None for a normal distribution of variance 2 / inputs, for rectifiers
            (He et al. 2015).
    """

    channels: int
    kernel_size: list[int] = [3, 3]
    strides: list[int] = [1, 1]
    padding: Padding = 'SAME'
    groups: int | None = 1
    bias: Literal['none', 'zeros'] = 'none'
    axes: list[str] = ['channels', 'mlp']
    init: Initializer | None = None

    def check(self) -> None:
        require_positive(self, 'channels', 'groups')
        require_pairs(self, 'kernel_size', 'strides')

    def forward(self, x_BHWC: jax.Array) -> jax.Array:
        y_BHWC = convolve(
            self,
            'kernel',
            x_BHWC,
            self.channels,
            kernel_size=self.kernel_size,
            strides=self.strides,
            padding=self.padding,
            groups=self.groups,
            axes=self.axes,
            init=self.init,
        )
        if self.bias == 'none':
            return y_BHWC
        axes = (self.axes[-1],)
        bias = self.param('bias', (self.channels,), axes, initializers.zeros, decay=False)
        return y_BHWC + bias


def require_pairs(layer: Layer, *names: str) -> None:
    """Raises ValueError unless the named fields are pairs of positive integers."""
    for name in names:
        value = list(layer.sym_getattr(name))
        if len(value) != 2 or min(value) < 1:
            raise ValueError(f'{name} must be two positive integers, height and width: {value}')


def convolve(
    layer: Layer,
    name: str,
    x_BHWC: jax.Array,
    channels: int,
    *,
    kernel_size: list[int],
    strides: list[int],
    padding: Padding = 'SAME',
    groups: int | None = 1,
    axes: list[str],
    init: Initializer | None = None,
) -> jax.Array:
    """Convolves with a kernel that is the parameter `name` of `layer`.

    By default the kernel is drawn with variance 2 / fan-in, for rectifiers (He et al. 2015).

    Raises:
        UserError: the groups do not divide the channels.
    """
    inputs = x_BHWC.shape[-1]
    groups = groups or inputs
    if inputs % groups or channels % groups:
        raise UserError(
            f'{layer.sym_path}: {groups} groups do not divide {inputs} channels into {channels}'
        )
    shape = (*kernel_size, inputs // groups, channels)
    draw = KernelInit(init, gain=2.0)
    # The kernels of groups are several matrices along one axis, so their axes are unknown.
    known = draw if groups == 1 else lambda *args: draw(*args)
    kernel = layer.param(name, shape, ('height', 'width', *axes), known)
    y_BHWC = jax.lax.conv_general_dilated(
        jnp.asarray(x_BHWC, layer.dtype),
        kernel,
        window_strides=strides,
        padding=padding,
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
        feature_group_count=groups,
    )
    return layer.constrain(y_BHWC, ('batch', 'height', 'width', 'channels'))
