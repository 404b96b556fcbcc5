import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from trainer.layers.attention_position import AttentionPosition, Position, bias_of
from trainer.layers.blockwise import Visibility, places
from trainer.layers.depthwise import DepthwiseConv1D
from trainer.layers.heads import MultiHead
from trainer.layers.kv_cache import cached_index, update_cache, visible_entries
from trainer.layers.local import attend_in_blocks, in_blocks_of, with_previous, within_window
from trainer.layers.masks import causal_but_for_prefix, same_segment
from trainer.layers.positions import Positions
from trainer.layers.projections import to_combined_heads
from trainer.layers.rotary import Rotary, turned
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue, choice, over, span_at


class Attention(MultiHead):
    """Grouped-query self-attention: [B, T, D] -> [B, T, D].

    Vaswani et al. 2017; Ainslie et al. 2023 (grouped queries); Su et al. 2021 (rotary positions).

    Attributes:
        mask: 'causal' attends to the past, and to the prefix where positions have one; 'full' to
            the whole segment.
        position: 'rotary' turns queries and keys by their position, 'none' does not. `Rotary` has
            fields, `RelativeBias` and `Alibi` add to the logits, and own ones are components, too.
        query_convolution: mixes the queries of neighbouring positions before the rotation (So et
            al. 2021, section 4). It is causal, and needs the mask 'causal'.
        key_convolution: the same for keys.
        value_convolution: the same for values.
        window: each position attends to itself and the `window - 1` before it (Beltagy et al.
            2020). The cost grows linearly with the length of a row. None for no window.
        combine_qkv: makes queries, keys and values by one product with one parameter, `qkv`.
    """

    mask: Literal['causal', 'full'] = 'causal'
    position: Position = 'rotary'
    query_convolution: DepthwiseConv1D | None = None
    key_convolution: DepthwiseConv1D | None = None
    value_convolution: DepthwiseConv1D | None = None
    window: int | None = None
    combine_qkv: bool = False

    usual = {'position': choice('rotary', 'Su et al. 2021, PaLM, LLaMA')}

    def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
        length = span_at(experiment, 'train_input.sequence_length')
        window = over(length, _usual_window) or _usual_window(8192)
        return super().usual_values(experiment) | {'window': window}

    def check(self) -> None:
        super().check()
        require_positive(self, 'window')
        for name in ('query_convolution', 'key_convolution', 'value_convolution', 'window'):
            if self.mask != 'causal' and self.sym_getattr(name) is not None:
                raise ValueError(f"{name} is causal: it needs mask='causal', not {self.mask!r}")
        if self.head_dim is not None:
            self._require_head(self.head_dim)

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        if positions is None:
            positions = Positions.unpacked(x_BTD.shape[:2])
        step = 2 if self.position == 'rotary' or isinstance(self.position, Rotary) else 1
        head_dim = self._head_dim(x_BTD.shape[-1], step)
        try:
            self._require_head(head_dim)
        except ValueError as error:
            raise UserError(f'{self.sym_path}: {error}') from error
        q_BTNH, k_BTKH, v_BTKH = self._projections(x_BTD, head_dim)
        if self.query_convolution is not None:
            q_BTNH = self.query_convolution(q_BTNH, positions)
        if self.key_convolution is not None:
            k_BTKH = self.key_convolution(k_BTKH, positions)
        if self.value_convolution is not None:
            v_BTKH = self.value_convolution(v_BTKH, positions)
        q_BTNH, k_BTKH = self._normalized('query', q_BTNH), self._normalized('key', k_BTKH)
        q_BTNH = turned(q_BTNH, positions.index_BT, self.position)
        k_BTKH = turned(k_BTKH, positions.index_BT, self.position)
        if self.window is not None and positions.prefix_BT is not None:
            raise UserError(
                f'{self.sym_path}.window: all positions attend to a prefix, also outside their '
                'window; leave out the window, or the prefix'
            )
        if self.cache_length is not None:
            out_BTNH = self._attend_to_cache(q_BTNH, k_BTKH, v_BTKH, positions)
        elif self._shares_positions(x_BTD.shape[1]):
            out_BTNH = self._attend_around(q_BTNH, k_BTKH, v_BTKH, positions)
        elif self.window is not None and self.window < x_BTD.shape[1]:
            out_BTNH = self._attend_locally(q_BTNH, k_BTKH, v_BTKH, positions, self.window)
        else:
            mask, is_causal = same_segment(positions.segment_BT), self.mask == 'causal'
            if is_causal and positions.prefix_BT is not None:
                mask, is_causal = causal_but_for_prefix(positions), False
            index_BT = _index(positions)
            bias = self._bias(index_BT, index_BT)
            each = self._prepared(q_BTNH, k_BTKH, v_BTKH)
            out_BTNH = self._attend(*each, mask, is_causal, bias=bias, sink_N=self._sink())
        return self._project_out(out_BTNH, x_BTD.shape[-1])

    def _projections(
        self, x_BTD: jax.Array, head_dim: int
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        heads = self.num_heads, self.num_kv_heads or self.num_heads
        if self.combine_qkv:
            return to_combined_heads(self, x_BTD, heads, head_dim, self.init, self._projection_bias)
        return (
            self._project('query', x_BTD, heads[0], head_dim),
            self._project('key', x_BTD, heads[1], head_dim),
            self._project('value', x_BTD, heads[1], head_dim),
        )

    def _attend_around(
        self, q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, positions: Positions
    ) -> jax.Array:
        bias_ND = self._bias_by_distance(q_BTNH.shape[1])
        at = places(positions, with_index=bias_ND is not None)
        visible = Visibility(self.mask == 'causal', self.window)
        return self._attend_in_ring(q_BTNH, k_BTKH, v_BTKH, at, at, visible, bias_ND)

    def _attend_locally(
        self,
        q_BTNH: jax.Array,
        k_BTKH: jax.Array,
        v_BTKH: jax.Array,
        positions: Positions,
        window: int,
    ) -> jax.Array:
        length, segment_BT = q_BTNH.shape[1], positions.segment_BT
        is_fused = self.implementation == 'cudnn'
        if is_fused and segment_BT is None:  # Its kernels know windows, but no other masks.
            each = self._prepared(q_BTNH, k_BTKH, v_BTKH)
            bias = self._bias(_index(positions), _index(positions))
            return self._attend(*each, None, is_causal=True, window=window, bias=bias)
        if length**2 <= 2 * window * (length + -length % window):  # Blocks would cost the same.
            mask = within_window(jnp.arange(length), jnp.arange(length), window)[None, None]
            segments = same_segment(segment_BT)
            mask = mask if segments is None else mask & segments
            each = self._prepared(q_BTNH, k_BTKH, v_BTKH)
            bias = self._bias(_index(positions), _index(positions))
            return self._attend(*each, mask, bias=bias, sink_N=self._sink())
        axes = ('batch', None, None, 'heads', 'kv')
        q_BCWNH, k_BCWKH, v_BCWKH = (
            self.constrain(in_blocks_of(window, x), axes)
            for x in (self._scaled(q_BTNH), k_BTKH, v_BTKH)
        )
        segment_BCW = None if segment_BT is None else in_blocks_of(window, segment_BT)
        out_BCWNH = attend_in_blocks(
            functools.partial(self._attend, sink_N=self._sink()),
            q_BCWNH,
            k_BCWKH,
            v_BCWKH,
            segment_BCW,
            as_examples=is_fused,
            bias_BCNWS=self._bias_in_blocks(in_blocks_of(window, _index(positions))),
        )
        return out_BCWNH.reshape(len(q_BTNH), -1, *q_BTNH.shape[2:])[:, :length]

    def _attend_to_cache(
        self, q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, positions: Positions
    ) -> jax.Array:
        if self.mask != 'causal':
            raise UserError(f'{self.sym_path}: only causal attention can decode token by token')
        axes = ('batch', 'length', 'heads', 'kv')
        k_BSKH = update_cache(self, 'keys', k_BTKH, positions, axes, self.window)
        v_BSKH = update_cache(self, 'values', v_BTKH, positions, axes, self.window)
        index_BS = cached_index(self, positions, self.window)
        visible_BTS = visible_entries(positions, index_BS, self.window)
        each = self._prepared(q_BTNH, k_BSKH, v_BSKH)
        bias = self._bias(positions.index_BT, index_BS)
        return self._attend(*each, visible_BTS[:, None], bias=bias, sink_N=self._sink())

    def _require_head(self, head_dim: int) -> None:
        if isinstance(self.position, AttentionPosition):
            self.position.require_head(head_dim)
        elif self.position == 'rotary' and head_dim % 2:
            raise ValueError(f'head_dim must be even for rotary positions: {head_dim}')

    def _require_bias(self) -> None:
        if self.implementation == 'cudnn':
            raise UserError(
                f"{self.sym_path}.implementation='cudnn' cannot add the biases of positions to "
                "logits: use 'auto', or rotary positions"
            )

    def _bias(self, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array | None:
        each = queries_BT, keys_BS, self.num_heads, self.mask == 'causal'
        bias_BNTS = bias_of(self.position, *each)
        if bias_BNTS is None:
            return None
        self._require_bias()
        examples = None if len(bias_BNTS) == 1 else 'batch'
        return self.constrain(bias_BNTS, (examples, 'heads', 'length', None))

    def _bias_by_distance(self, length: int) -> jax.Array | None:
        """The bias of all distances in rows of `length`: [N, 2 * length - 1]."""
        distance_BD = jnp.arange(1 - length, length)[None]
        keys_B1 = jnp.zeros((1, 1), distance_BD.dtype)
        each = distance_BD, keys_B1, self.num_heads, self.mask == 'causal'
        bias_BND1 = bias_of(self.position, *each)
        return None if bias_BND1 is None else bias_BND1[0, :, :, 0].astype(jnp.float32)

    def _bias_in_blocks(self, index_BCW: jax.Array) -> jax.Array | None:
        examples, blocks, window = index_BCW.shape
        queries = index_BCW.reshape(examples * blocks, -1)
        keys = with_previous(index_BCW).reshape(examples * blocks, -1)
        bias = bias_of(self.position, queries, keys, self.num_heads, is_causal=True)
        if bias is None:
            return None
        self._require_bias()
        bias_BCNWS = bias.reshape(examples, blocks, -1, window, 2 * window)
        axes = (None if examples == 1 else 'batch', None, 'heads', None, None)
        return self.constrain(bias_BCNWS, axes)


def _index(positions: Positions) -> jax.Array:
    """Positions of queries and keys, [1, T] where they are those of a row without segments."""
    return positions.index_BT if positions.segment_BT is not None else positions.index_BT[:1]


def _usual_window(length: float) -> UsualValue:
    source = '512: Beltagy et al. 2020; 1024: Gemma 3; 4096, half of the length: Mistral, Gemma 2'
    value = max(1, min(1024, length / 2))
    return UsualValue(value, value / 2, 4 * value, source)
