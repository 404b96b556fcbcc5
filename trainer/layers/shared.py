"""A layer of a stack that has the weights of the one before it. Lan et al. 2020."""

from typing import Any

import jax

from trainer.layers.base import Layer
from trainer.symbolic.errors import UserError


class SharedWithPrevious(Layer):
    """In a `Stack`: the layer before it once more, with the same weights (ALBERT).

    Where several stand in a row, all of them are that one layer: `[A, SharedWithPrevious(),
    SharedWithPrevious()]` applies A three times. Its parameters are stored once, and an application
    has dropout and a decoding cache of its own. What layers keep that no gradient changes, such as
    running means, each application changes in turn.

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
            f'{self.sym_path}: SharedWithPrevious stands among the `layers` of a Stack, after '
            'another one; it is no layer by itself'
        )
