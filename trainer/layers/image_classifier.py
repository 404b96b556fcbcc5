import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.layers.base import Layer
from trainer.layers.initialization import Initializer
from trainer.symbolic.component import require_positive


class ImageClassifier(Layer):
    """Base of models of images: [B, H, W, C] -> logits [B, num_classes] in float32.

    Attributes:
        num_classes: number of logits.
        init: of the kernel of the logits; None for a normal distribution of deviation 1 /
            sqrt(inputs). `VisionTransformer` embeds its patches by it, too.
    """

    num_classes: int
    init: Initializer | None = None

    def check(self) -> None:
        require_positive(self, 'num_classes')

    def logits(self, x_BD: jax.Array) -> jax.Array:
        """Applies a linear layer to the features of each image."""
        shape = (x_BD.shape[-1], self.num_classes)
        kernel_DK = self.param('head_kernel', shape, ('embed', 'classes'), self.init)
        axes = ('classes',)
        bias_K = self.param('head_bias', shape[1:], axes, initializers.zeros, decay=False)
        return self.product('bd,dk->bk', x_BD, kernel_DK, jnp.float32) + bias_K
