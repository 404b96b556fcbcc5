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

    @classmethod
    def packed(cls, segment_BT: jax.Array, index_BT: jax.Array | None = None) -> 'Positions':
        """Rows of several segments, with the positions in them, which otherwise count from 0.

        Example:
            >>> Positions.packed(jnp.array([[1, 1, 2, 2, 2, 0]])).index_BT.tolist()
            [[0, 1, 0, 1, 2, 0]]
        """
        if index_BT is None:
            column_BT = cls.unpacked(segment_BT.shape).index_BT
            begins_BT = jnp.pad(segment_BT[:, 1:] != segment_BT[:, :-1], ((0, 0), (1, 0)))
            index_BT = column_BT - jax.lax.cummax(jnp.where(begins_BT, column_BT, 0), axis=1)
        return cls(index_BT, segment_BT)
