import jax

from trainer.layers.activations import Activation, activate
from trainer.layers.resnet import NormedConvolutions
from trainer.symbolic.component import require_above_zero, require_positive
from trainer.symbolic.usual_values import UsualValue, choice


class InvertedBottleneck(NormedConvolutions):
    """Inverted bottleneck of MobileNetV2: [B, H, W, C] -> [B, H / stride, W / stride, channels].

    A 1×1 convolution expands the channels by the factor `expansion`, a depthwise one of
    `kernel_size` mixes pixels, and a 1×1 convolution projects to `channels`. Each is followed by a
    normalization, the first two by an activation, too. (Sandler et al. 2018; for search spaces, Tan
    & Le 2019.) Where `expansion` is 1, the first is left out.

    Example:
        >>> import pyglove as pg
        >>> searched = InvertedBottleneck(channels=24, kernel_size=pg.oneof([3, 5, 7]), stride=2)

    Attributes:
        channels: of the result.
        expansion: inner channels as a multiple of the input's, rounded.
        kernel_size: height and width of the depthwise kernel, in pixels.
        stride: of the depthwise kernel, in pixels.
        skip: adds the input to the result if both have the same shape.
    """

    channels: int
    expansion: float = 6.0
    kernel_size: int = 3
    stride: int = 1
    skip: bool = True
    activation: Activation = 'relu6'

    usual = {
        'expansion': UsualValue(6.0, 3.0, 6.0, 'MobileNetV2 (Sandler et al. 2018), MnasNet'),
        'kernel_size': UsualValue(3, 3, 5, 'MobileNetV2; 5: MnasNet, EfficientNet'),
        'skip': choice(True, 'MobileNetV2 (Sandler et al. 2018)'),
        'activation': choice('relu6', 'MobileNetV2 (Sandler et al. 2018), MnasNet'),
    }

    def check(self) -> None:
        require_positive(self, 'channels', 'kernel_size', 'stride')
        require_above_zero(self, 'expansion')

    def forward(self, x_BHWC: jax.Array) -> jax.Array:
        y_BHWC, inputs = x_BHWC, x_BHWC.shape[-1]
        if self.expansion != 1:
            hidden = max(1, round(self.expansion * inputs))
            y_BHWC = activate(self.convolved('expand', y_BHWC, hidden, 1), self.activation)
        y_BHWC = self.convolved(
            'depthwise', y_BHWC, y_BHWC.shape[-1], self.kernel_size, self.stride, groups=None
        )
        y_BHWC = activate(y_BHWC, self.activation)
        y_BHWC = self.convolved('project', y_BHWC, self.channels, 1)
        return x_BHWC + y_BHWC if self.skip and x_BHWC.shape == y_BHWC.shape else y_BHWC
