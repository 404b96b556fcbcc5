from typing import Literal

import jax

from trainer.layers.base import Layer
from trainer.symbolic.errors import UserError


class AttentionPosition(Layer):
    """Base of the positions in attention: turns queries and keys, or adds a bias to the logits.

    Logits may depend only on the distance of a key, so that decoding, windows and packed rows need
    nothing more.
    """

    def require_head(self, head_dim: int) -> None:
        """Raises ValueError if it does not fit heads of this size."""

    def turned(self, x_BTNH: jax.Array, index_BT: jax.Array) -> jax.Array:
        """Queries or keys that know their positions, in the same shape."""
        return x_BTNH

    def bias(self, distance_BTS: jax.Array, num_heads: int, is_causal: bool) -> jax.Array | None:
        """A float32 bias of the logits, [B, N, T, S]; None adds none.

        Args:
            distance_BTS: position of each query minus the one of each key.
            num_heads: N.
            is_causal: keys after a query are hidden, except in a prefix.
        """
        return None


Position = Literal['rotary', 'none'] | AttentionPosition
"""`rotary` stands for `Rotary()`."""


def bias_of(
    position: Position,
    queries_BT: jax.Array,
    keys_BS: jax.Array,
    num_heads: int,
    is_causal: bool,
) -> jax.Array | None:
    """The bias of the logits by position, [B, N, T, S]; None without one.

    Args:
        position: a name, or a component of the running layer.
        queries_BT: position of each query.
        keys_BS: position of each key. B may be 1, where all rows have the same positions.

    Raises:
        UserError: the bias has another shape.
    """
    if not isinstance(position, AttentionPosition):
        return None
    distance_BTS = queries_BT[:, :, None] - keys_BS[:, None, :]
    bias: jax.Array | None = position.call('bias', distance_BTS, num_heads, is_causal)
    if bias is None:
        return None
    examples, *lengths = distance_BTS.shape
    if bias.shape != (examples, num_heads, *lengths):
        raise UserError(
            f'{position.sym_path} ({type(position).__name__}): `bias` must return [B, N, T, S], '
            f'here {[examples, num_heads, *lengths]}, not {list(bias.shape)}'
        )
    return bias
