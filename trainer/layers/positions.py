from typing import NamedTuple

import jax
import jax.numpy as jnp


class Positions(NamedTuple):
    """Positions of the tokens of a batch.

    Attributes:
        index_BT: position of each token in its segment, from 0.
        segment_BT: the packed segment that it belongs to, from 1; 0 is padding. None where each
            row is one segment.
        prefix_BT: True in the prefix of a segment, where causal attention is bidirectional; None
            without prefixes.
    """

    index_BT: jax.Array
    segment_BT: jax.Array | None = None
    prefix_BT: jax.Array | None = None

    @classmethod
    def unpacked(cls, shape_BT: tuple[int, ...]) -> 'Positions':
        """Rows of one segment each."""
        return cls(jnp.broadcast_to(jnp.arange(shape_BT[1]), shape_BT))
