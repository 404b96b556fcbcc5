import jax
import jax.numpy as jnp

from trainer.layers.activations import Activation, activate
from trainer.layers.base import Layer
from trainer.layers.batch_norm import BatchNorm
from trainer.layers.convolution import convolve
from trainer.layers.image_classifier import ImageClassifier
from trainer.layers.initialization import Initializer
from trainer.layers.normalization import Normalization
from trainer.layers.pooling import Pool2D
from trainer.symbolic.component import require_positive
from trainer.symbolic.usual_values import UsualValue, choice


class NormedConvolutions(Layer):
    """Base of layers of convolutions, each followed by a normalization.

    Attributes:
        norm: template of the normalizations. Each has its own parameters.
        activation: applied after them.
        init: of new kernels; None for a normal distribution of variance 2 / inputs, for rectifiers
            (He et al. 2015).
    """

    norm: Normalization = BatchNorm()
    activation: Activation = 'relu'
    init: Initializer | None = None

    usual = {
        'norm': choice(BatchNorm, 'Ioffe & Szegedy 2015, He et al. 2016'),
        'activation': choice('relu', 'He et al. 2016'),
    }

    def convolved(
        self,
        name: str,
        x_BHWC: jax.Array,
        channels: int,
        size: int,
        stride: int = 1,
        groups: int | None = 1,
    ) -> jax.Array:
        """norm(convolution(x)) with a square kernel of `size` pixels; groups as in `convolve`."""
        # Colours and the inputs of a single channel are not sharded.
        inputs = 'embed' if x_BHWC.shape[-1] > 4 and groups == 1 else 'channels'
        y_BHWC = convolve(
            self,
            f'{name}_kernel',
            x_BHWC,
            channels,
            kernel_size=[size, size],
            strides=[stride, stride],
            groups=groups,
            axes=[inputs, 'mlp'],
            init=self.init,
        )
        return self.norm.call_as(f'{name}_norm', 'forward', y_BHWC)


class SmallStem(NormedConvolutions):
    """First layer for small images: a 3×3 convolution."""

    def forward(self, x_BHWC: jax.Array, channels: int) -> jax.Array:
        return activate(self.convolved('first', x_BHWC, channels, 3), self.activation)


class LargeStem(NormedConvolutions):
    """First layers for ImageNet: a 7×7 convolution and pooling, to a quarter of the size.

    Attributes:
        pool: applied after the convolution.
    """

    pool: Pool2D = Pool2D(window=[3, 3], strides=[2, 2], padding='SAME')

    def forward(self, x_BHWC: jax.Array, channels: int) -> jax.Array:
        x_BHWC = self.convolved('first', x_BHWC, channels, 7, stride=2)
        return self.pool(activate(x_BHWC, self.activation))


class ResidualBlock(NormedConvolutions):
    """Base of blocks: activation(shortcut(x) + convolutions(x)).

    The shortcut is x itself if the shape stays the same, else a 1×1 convolution.
    """

    def forward(self, x_BHWC: jax.Array, channels: int, stride: int) -> jax.Array:
        y_BHWC = self.inner(x_BHWC, channels, stride)
        if x_BHWC.shape != y_BHWC.shape:
            x_BHWC = self.convolved('shortcut', x_BHWC, y_BHWC.shape[-1], 1, stride)
        return activate(x_BHWC + y_BHWC, self.activation)

    def inner(self, x_BHWC: jax.Array, channels: int, stride: int) -> jax.Array:
        """The residual branch."""
        raise NotImplementedError(type(self).__name__)


class BasicBlock(ResidualBlock):
    """Two 3×3 convolutions: [B, H, W, C] -> [B, H / stride, W / stride, channels]."""

    def inner(self, x_BHWC: jax.Array, channels: int, stride: int) -> jax.Array:
        x_BHWC = self.convolved('first', x_BHWC, channels, 3, stride)
        x_BHWC = activate(x_BHWC, self.activation)
        return self.convolved('second', x_BHWC, channels, 3)


class BottleneckBlock(ResidualBlock):
    """1×1, 3×3, 1×1: [B, H, W, C] -> [B, H / stride, W / stride, expansion * channels].

    The 3×3 convolution has the stride (ResNet "1.5").

    Attributes:
        expansion: output channels as a multiple of the inner channels.
    """

    expansion: int = 4

    usual = {'expansion': UsualValue(4, 3, 4, 'He et al. 2016')}

    def check(self) -> None:
        require_positive(self, 'expansion')

    def inner(self, x_BHWC: jax.Array, channels: int, stride: int) -> jax.Array:
        x_BHWC = activate(self.convolved('first', x_BHWC, channels, 1), self.activation)
        x_BHWC = self.convolved('second', x_BHWC, channels, 3, stride)
        x_BHWC = activate(x_BHWC, self.activation)
        return self.convolved('third', x_BHWC, self.expansion * channels, 1)


class ResNet(ImageClassifier):
    """A residual network (He et al. 2016): [B, H, W, C] -> logits [B, num_classes] in float32.

    Each stage but the first halves height and width and doubles the channels. `block` is the
    template of all blocks; their parameters are under `stage_<i>_block_<j>`.

    Example:
        >>> resnet_18 = ResNet(num_classes=1000)
        >>> resnet_50 = ResNet(num_classes=1000, block=BottleneckBlock(), stage_sizes=[3, 4, 6, 3])
        >>> for_small_images = ResNet(num_classes=10, stem=SmallStem(), width=16)

    Attributes:
        stage_sizes: blocks in each stage.
        width: channels of the first stage; with bottlenecks, the inner channels.
        stem: the first layers: (images, channels) -> [B, H', W', channels].
        block: template of the blocks.
    """

    stage_sizes: list[int] = [2, 2, 2, 2]
    width: int = 64
    stem: Layer = LargeStem()
    block: ResidualBlock = BasicBlock()

    usual = {'width': UsualValue(64, 16, 128, 'He et al. 2016: 64, and 16 for small images')}

    def check(self) -> None:
        super().check()
        require_positive(self, 'width')
        if not self.stage_sizes or min(self.stage_sizes) < 1:
            raise ValueError(f'stage_sizes must be positive: {list(self.stage_sizes)}')

    def forward(self, x_BHWC: jax.Array) -> jax.Array:
        x_BHWC = self.stem(x_BHWC, self.width)
        for stage, size in enumerate(self.stage_sizes):
            for index in range(size):
                stride = 2 if stage and not index else 1
                name = f'stage_{stage}_block_{index}'
                channels = self.width * 2**stage
                x_BHWC = self.block.call_as(name, 'forward', x_BHWC, channels, stride)
        x_BD = jnp.mean(x_BHWC, axis=(1, 2), dtype=jnp.float32).astype(x_BHWC.dtype)
        return self.logits(x_BD)
