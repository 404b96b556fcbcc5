from typing import NamedTuple

import jax
import jax.numpy as jnp

from trainer.layers.blockwise import Places, Visibility
from trainer.layers.heads import MultiHead
from trainer.layers.masks import same_segment
from trainer.layers.positions import Positions
from trainer.layers.projections import Projection


class Memory(NamedTuple):
    """The output of an encoder.

    Attributes:
        x_BSD: activations.
        segment_BS: the segment of each, as in `Positions`; None where each row is one segment.
    """

    x_BSD: jax.Array
    segment_BS: jax.Array | None = None


class CrossAttention(MultiHead):
    """Each position attends to the memory of its segment: [B, T, D] -> [B, T, D].

    Vaswani et al. 2017. The memory contains its positions already; none are added.
    """

    def forward(self, x_BTD: jax.Array, positions: Positions, memory: Memory) -> jax.Array:
        dims = x_BTD.shape[-1]
        head_dim, kv_heads = self._head_dim(dims), self.num_kv_heads or self.num_heads

        def of_memory(name: Projection) -> jax.Array:
            return self._project(name, memory.x_BSD, kv_heads, head_dim)

        q_BTNH = self._normalized('query', self._project('query', x_BTD, self.num_heads, head_dim))
        k_BSKH = self.create_once('keys', lambda: self._normalized('key', of_memory('key')))
        v_BSKH = self.create_once('values', lambda: of_memory('value'))
        if self._shares_positions(x_BTD.shape[1], memory.x_BSD.shape[1]):
            at = _places(positions, memory)
            out_BTNH = self._attend_in_ring(q_BTNH, k_BSKH, v_BSKH, *at, Visibility())
        else:
            each = self._prepared(q_BTNH, k_BSKH, v_BSKH)
            out_BTNH = self._attend(*each, _visible(positions, memory), sink_N=self._sink())
        return self._project_out(out_BTNH, dims)


def _places(positions: Positions, memory: Memory) -> tuple[Places, Places]:
    row_T, row_S = (jnp.arange(x.shape[1]) for x in (positions.index_BT, memory.x_BSD))
    of_queries, of_keys = positions.segment_BT, memory.segment_BS
    if of_queries is None and of_keys is not None:  # As in `_visible`.
        of_queries, of_keys = jnp.ones_like(positions.index_BT), (of_keys > 0).astype(jnp.int32)
    return Places(row_T, of_queries), Places(row_S, of_keys)


def _visible(positions: Positions, memory: Memory) -> jax.Array | None:
    if memory.segment_BS is None:
        return None
    if positions.segment_BT is None:  # One segment per row: all of the memory without padding.
        return (memory.segment_BS > 0)[:, None, None, :]
    return same_segment(positions.segment_BT, memory.segment_BS)
