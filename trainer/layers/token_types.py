import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.initialization import Gaussian, Initializer, table_init
from trainer.layers.positions import Positions
from trainer.symbolic.component import require_not_negative, require_positive


class TokenTypes(Layer):
    """A vector for each part of a text, such as the two sentences of a pair (Devlin et al. 2019).

    A part ends with `separator`, the last one with its text.

    Example:
        >>> types = TokenTypes(2, separator=9)
        >>> types.of(jnp.array([[1, 5, 9, 6, 7, 9]])).tolist()
        [[0, 0, 0, 1, 1, 1]]

    Attributes:
        num_types: number of vectors. Further parts have the last one.
        separator: the token that ends a part; None where texts have one part.
        init: of new vectors.
    """

    num_types: int = 2
    separator: int | None = None
    init: Initializer = Gaussian(0.02)

    def check(self) -> None:
        require_positive(self, 'num_types')
        require_not_negative(self, 'separator')

    def of(self, ids_BT: jax.Array, positions: Positions | None = None) -> jax.Array:
        """The number of the part of each token, [B, T]; packed texts count from 0."""
        if self.separator is None:
            return jnp.zeros_like(ids_BT)
        positions = positions or Positions.unpacked(ids_BT.shape)
        ends_BT = (ids_BT == self.separator).astype(jnp.int32)
        before_BT = jnp.cumsum(ends_BT, axis=1) - ends_BT
        begins_BT = jnp.maximum(jnp.arange(ids_BT.shape[1]) - positions.index_BT, 0)
        part_BT = before_BT - jnp.take_along_axis(before_BT, begins_BT, axis=1)
        return jnp.minimum(part_BT, self.num_types - 1)

    def forward(
        self, ids_BT: jax.Array, dims: int, positions: Positions | None = None
    ) -> jax.Array:
        shape = (self.num_types, dims)
        init = table_init(self.init)
        # Float32, as in `LearnedPositions`: few vectors sum the gradients of all tokens.
        table_PD = self.param('table', shape, (None, 'embed'), init, keep_float32=True)
        table_PD = self.constrain(table_PD, (None, 'features'))
        added_BTD = jnp.take(table_PD, self.of(ids_BT, positions), axis=0).astype(self.dtype)
        return self.constrain(added_BTD, ('batch', 'length', 'features'))
