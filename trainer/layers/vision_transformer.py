"""Transformers for images. Dosovitskiy et al. 2021."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.layers.convolution import convolve
from trainer.layers.dropout import Dropout
from trainer.layers.image_classifier import ImageClassifier
from trainer.layers.initialization import Bias
from trainer.layers.masks import require_mask
from trainer.layers.normalization import LayerNorm, Normalization
from trainer.layers.positions import Positions
from trainer.layers.stack import Stack
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue, choice


class VisionTransformer(ImageClassifier):
    """A transformer over the patches of an image: [B, H, W, C] -> logits [B, num_classes].

    Example:
        >>> from trainer.layers import Attention, FeedForward, TransformerBlock
        >>> block = TransformerBlock(Attention(3, mask='full', position='none'), FeedForward())
        >>> tiny_16 = VisionTransformer(
        ...     num_classes=1000, patch_size=16, dims=192, stack=Stack([block], repeats=12)
        ... )

    Attributes:
        patch_size: height and width of a patch, in pixels.
        dims: width of the model.
        stack: blocks whose attention has the mask 'full'. Patches have learned positions, so
            attention needs none (`position='none'`).
        pool: 'mean' takes the mean over patches, 'class_token' a token before them.
        final_norm: applied before the logits.
        dropout: applied to the embedded patches.
        patch_bias: 'zeros' adds a bias that starts at zero to the embedded patches, but not to the
            class token.
    """

    patch_size: int
    dims: int
    stack: Stack
    pool: Literal['mean', 'class_token'] = 'mean'
    final_norm: Normalization = LayerNorm()
    dropout: Dropout | None = None
    patch_bias: Bias = 'none'

    usual = {
        'patch_size': UsualValue(16, 8, 16, 'Dosovitskiy et al. 2021; 8: DINO (Caron et al. 2021)'),
        'dims': UsualValue(768, 192, 1024, 'Dosovitskiy et al. 2021; 192 and 384: DeiT'),
        'final_norm': choice(LayerNorm, 'Dosovitskiy et al. 2021'),
    }

    def check(self) -> None:
        super().check()
        require_positive(self, 'patch_size', 'dims')
        require_mask(self.stack, 'stack', 'full')

    def forward(self, x_BHWC: jax.Array) -> jax.Array:
        x_BTD = self._embedded(x_BHWC)
        if self.dropout is not None:
            x_BTD = self.dropout(x_BTD)
        x_BTD = self.final_norm(self.stack(x_BTD, Positions.unpacked(x_BTD.shape[:2])))
        if self.pool == 'class_token':
            return self.logits(x_BTD[:, 0])
        return self.logits(jnp.mean(x_BTD, axis=1, dtype=jnp.float32).astype(x_BTD.dtype))

    def _embedded(self, x_BHWC: jax.Array) -> jax.Array:
        size = [self.patch_size, self.patch_size]
        if x_BHWC.shape[1] % self.patch_size or x_BHWC.shape[2] % self.patch_size:
            raise UserError(
                f'{self.sym_path}: patch_size ({self.patch_size}) must divide the height and width '
                f'of the images, {x_BHWC.shape[1:3]}'
            )
        patches = convolve(
            self,
            'patches_kernel',
            x_BHWC,
            self.dims,
            kernel_size=size,
            strides=size,
            padding='VALID',
            axes=['channels', 'embed'],
            init=self.init,
        )
        x_BTD = patches.reshape(len(x_BHWC), -1, self.dims)
        if self.patch_bias != 'none':
            shape, axes = (self.dims,), ('embed',)
            x_BTD += self.param('patches_bias', shape, axes, initializers.zeros, decay=False)
        if self.pool == 'class_token':
            token_D = self.param(
                'class_token', (self.dims,), ('embed',), initializers.zeros, decay=False
            )
            first_B1D = jnp.broadcast_to(token_D, (len(x_BTD), 1, self.dims))
            x_BTD = jnp.concatenate([first_B1D, x_BTD], axis=1)
        init = initializers.normal(0.02)
        positions_TD = self.param('positions', x_BTD.shape[1:], (None, 'embed'), init, decay=False)
        return self.constrain(x_BTD + positions_TD, ('batch', 'length', 'features'))
