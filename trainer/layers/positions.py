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
        lengths_B: number of tokens of each row; padding follows them. None where all are tokens,
            or `segment_BT` marks padding. Decoding sets it for prompts.
    """

    index_BT: jax.Array
    segment_BT: jax.Array | None = None
    prefix_BT: jax.Array | None = None
    lengths_B: jax.Array | None = None

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

    @property
    def is_token_BT(self) -> jax.Array:
        """False for padding, over which a layer with a state keeps the state.

        Example:
            >>> prompts = Positions.unpacked((2, 3))._replace(lengths_B=jnp.array([1, 3]))
            >>> prompts.is_token_BT.tolist()
            [[True, False, False], [True, True, True]]
        """
        is_token_BT = jnp.ones(self.index_BT.shape, bool)
        if self.segment_BT is not None:
            is_token_BT &= self.segment_BT != 0
        if self.lengths_B is not None:
            is_token_BT &= jnp.arange(self.index_BT.shape[1]) < self.lengths_B[:, None]
        return is_token_BT

    @property
    def begins_BT(self) -> jax.Array:
        """True where a segment follows another one: there, a layer with a state starts anew.

        Example:
            >>> Positions.packed(jnp.array([[1, 1, 2, 2, 0]])).begins_BT.tolist()
            [[False, False, True, False, False]]
        """
        if self.segment_BT is None:
            return jnp.zeros(self.index_BT.shape, bool)
        is_other_BT = self.segment_BT[:, 1:] != self.segment_BT[:, :-1]
        return jnp.pad(is_other_BT, ((0, 0), (1, 0))) & self.is_token_BT
