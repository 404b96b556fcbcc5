"""Where each token stands: what sequence layers are told besides the activations."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Positions(NamedTuple):
    """Positions of the tokens of a batch.

    Attributes:
        index_BT: position of each token in its segment, from 0.
        segment_BT: which of the packed segments it belongs to, from 1; 0 is padding. None where
            each row is one segment.
        prefix_BT: whether it is in the prefix of its segment, which causal attention sees from both
            sides; None where there is no prefix.
    """

    index_BT: jax.Array
    segment_BT: jax.Array | None = None
    prefix_BT: jax.Array | None = None

    @classmethod
    def unpacked(cls, shape_BT: tuple[int, ...]) -> 'Positions':
        """Rows of one segment each."""
        return cls(jnp.broadcast_to(jnp.arange(shape_BT[1]), shape_BT))
