from typing import Any

import jax

from trainer.layers.base import Layer
from trainer.symbolic.errors import UserError


class SharedWithPrevious(Layer):
    """Applies the previous layer of a `Stack` once more, with the same weights (Lan et al. 2020).

    `[A, SharedWithPrevious(), SharedWithPrevious()]` applies A three times. The parameters are
    stored once. Each application has its own dropout and its own decoding cache. Each application
    updates untrained state, such as running means, in turn.

    Example:
        >>> import pyglove as pg
        >>> from trainer.layers import Attention, FeedForward, Residual, Stack
        >>> def layer():
        ...     return pg.oneof(
        ...         [Residual(Attention(2)), Residual(FeedForward()), SharedWithPrevious()]
        ...     )
        >>> space = Stack([Residual(Attention(2)), layer(), layer(), layer()])
    """

    def forward(self, x: jax.Array, *args: Any) -> jax.Array:
        raise UserError(
            f'{self.sym_path}: SharedWithPrevious must stand among the `layers` of a Stack, after '
            'another layer'
        )
