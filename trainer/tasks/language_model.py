import math
from typing import Any, Literal

import jax
import jax.numpy as jnp

from trainer.decoding.base import Cache, Extend
from trainer.inputs.base import Input
from trainer.inputs.tokens.vocabulary import PAD_ID
from trainer.inputs.weights import weights_of
from trainer.layers.adapter import FlaxAdapter
from trainer.layers.base import ForwardContext
from trainer.layers.branch import takes_positions
from trainer.layers.masks import require_mask
from trainer.layers.positions import Positions
from trainer.symbolic.component import components
from trainer.symbolic.errors import UserError
from trainer.task import DeviceBatch
from trainer.tasks.tokens import TokenTask


class LanguageModelTask(TokenTask):
    """Next-token prediction.

    Batches hold `ids`, `labels` and `weights` [B, T], with `segment_ids` (and `segment_pos`, which
    otherwise follows) where rows are packed, and `label_bytes`, the bytes of text of each label. A
    prefix model also needs `inputs_indicator` [B, T]: 1 where `ids` is a token of the prefix, or
    the token before its first. A label that is the next token of the prefix is visible, so it has
    no weight.

    The model is any layer from `ids`, or `ids` and `Positions`, to logits [B, T, V]. A field or
    property `vocab_size` says V. Packed rows, other model types and decoding need the positions.

    Attributes:
        model: token ids to logits, such as `TransformerLm`.
        model_type: visible tokens: 'causal' for the past; 'prefix' for the whole prefix, too
            (Raffel et al. 2020); 'bidirectional' for all, so that labels must not be among `ids`,
            as in masked language models. Its batches have `segment_ids`, 0 for padding.
    """

    model_type: Literal['causal', 'prefix', 'bidirectional'] = 'causal'

    def check(self) -> None:
        super().check()
        self._require_vocabulary()
        require_mask(
            self.model,
            f'model_type {self.model_type!r}',
            'full' if self.model_type == 'bidirectional' else 'causal',
            is_prefix=self.model_type == 'prefix',
        )
        if self.decoder is None:
            return
        if self.model_type == 'bidirectional':
            raise ValueError("decoder: a 'bidirectional' model cannot decode token by token")
        for each in components(self.model):
            if isinstance(each, FlaxAdapter) and not each.is_pointwise:
                raise ValueError(
                    f'decoder: {each.sym_path} ({type(each).__name__}) cannot decode token by '
                    'token, since a module of flax has no cache. If it computes each position by '
                    'itself, set is_pointwise = True in its class'
                )

    def check_input(self, data: Input) -> None:
        super().check_input(data)
        if 'segment_ids' in data.element_spec() or self.model_type != 'causal':
            self._require_positions('its rows have positions')
        if self.model_type == 'prefix' and 'inputs_indicator' not in data.element_spec():
            raise UserError(
                "its batches have no `inputs_indicator`, which task.model_type='prefix' needs: it "
                'marks the tokens of the prefix'
            )
        if self.model_type == 'bidirectional' and 'segment_ids' not in data.element_spec():
            raise UserError(
                'its batches have no `segment_ids`, by which padding is known: task.model_type='
                "'bidirectional' sees all positions. Add them: 1 for tokens, 0 for padding"
            )

    def check_decode_input(self, data: Input) -> None:
        super().check_decode_input(data)
        self._require_positions('decoding has positions')

    def _require_positions(self, reason: str) -> None:
        if not takes_positions(self.model):
            raise UserError(
                f'{reason}, but task.model ({type(self.model).__name__}) does not take them: '
                'define forward(self, ids, positions=None)'
            )

    def model_inputs(self, batch: DeviceBatch) -> tuple[object, ...]:
        ids_BT = batch['ids']
        positions = None
        if 'segment_ids' in batch:
            positions = Positions.packed(batch['segment_ids'], batch.get('segment_pos'))
        elif self.model_type == 'bidirectional':
            positions = Positions.unpacked(ids_BT.shape)._replace(segment_BT=without_padding(batch))
        if self.model_type == 'prefix':
            positions = positions or Positions.unpacked(ids_BT.shape)
            positions = positions._replace(prefix_BT=batch['inputs_indicator'] > 0)
        return (ids_BT,) if positions is None else (ids_BT, positions)

    def label_weights(self, batch: DeviceBatch) -> jax.Array:
        weights_BT = super().label_weights(batch)
        return weights_BT * _is_unseen(batch) if self.model_type == 'prefix' else weights_BT

    def extender(self, variables: Any, batch: DeviceBatch, context: ForwardContext) -> Extend:
        def extend(cache: Cache, ids: jax.Array, positions: Positions) -> tuple[Cache, jax.Array]:
            if cache is None and self.model_type == 'prefix':
                # The prompt is the prefix. Later tokens attend to all earlier ones anyway.
                positions = positions._replace(prefix_BT=positions.is_token_BT)
            return self._with_cache(variables, cache, context, ids, positions)

        return extend

    def num_tokens(self, batch: DeviceBatch) -> int:
        return math.prod(batch['ids'].shape)


def without_padding(batch: DeviceBatch) -> jax.Array:
    """1 up to the last token of each row that is not 0, or has a weight: int32 [B, T]."""
    is_token = batch['ids'] != PAD_ID
    found = weights_of(batch, 'labels')
    if found is not None and found.ndim > 1:  # A weight of an example marks no token.
        is_token |= found > 0
    return jax.lax.cummax(is_token.astype(jnp.int32), axis=1, reverse=True)


def _is_unseen(batch: DeviceBatch) -> jax.Array:
    """1 where the label is not a visible token of the prefix: float32 [B, T]."""
    is_prefix = batch['inputs_indicator'] > 0
    seen = is_prefix[:, 1:] & is_prefix[:, :-1]
    if 'segment_ids' in batch:
        seen &= batch['segment_ids'][:, 1:] == batch['segment_ids'][:, :-1]
    return 1.0 - jnp.pad(seen, ((0, 0), (0, 1))).astype(jnp.float32)
