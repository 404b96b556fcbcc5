import jax

from trainer.layers.base import Layer
from trainer.layers.linear import Linear
from trainer.layers.masks import require_mask
from trainer.layers.pooling import SequencePool
from trainer.layers.positions import Positions
from trainer.layers.transformer import TransformerLm


class TextClassifier(TransformerLm):
    """An encoder of texts: token ids [B, T] -> logits, or values, [B, K] in float32.

    A warm start takes the parameters of a masked language model, which have the same names.

    Attributes:
        stack: blocks whose attention has the mask 'full'.
        head: projects to the classes, or to the values of a regression.
        pool: makes one vector of the tokens of a text, after `final_norm`.
        pooler: applied to this vector, such as a linear layer with an activation (Devlin et al.
            2019). It keeps the width.
    """

    head: Linear
    pool: SequencePool = SequencePool()
    pooler: Layer | None = None

    usual = {'logits_cap': None}

    def check(self) -> None:
        for name in ('logits_cap', 'future_tokens', 'transform', 'shared_head_bias'):
            if self.sym_getattr(name) not in (None, 'none'):
                raise ValueError(f'{name}: it is for language models')
        require_mask(self.stack, 'stack', 'full')

    def forward(self, ids_BT: jax.Array, positions: Positions | None = None) -> jax.Array:
        if positions is None:
            positions = Positions.unpacked(ids_BT.shape)
        x_BTD = self.hidden(ids_BT, positions)
        if self.final_norm is not None:
            x_BTD = self.final_norm(x_BTD)
        x_BD = self.pool(x_BTD, positions)
        if self.pooler is not None:
            x_BD = self.pooler(x_BD)
        logits: jax.Array = self.head.call('logits', x_BD)
        return logits
