import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from trainer.decoding.base import Cache, Extend
from trainer.inputs.base import Input
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.cross_attention import Memory
from trainer.layers.positions import Positions
from trainer.measures.accuracy import AccuracyStrict
from trainer.measures.base import Measure
from trainer.symbolic.errors import UserError
from trainer.task import DeviceBatch
from trainer.tasks.tokens import TokenTask


class SequenceTask(TokenTask):
    """Prediction of the next token of the target, given the whole source. Pax's SequenceModel.

    Batches hold `encoder_ids` [B, S]; `ids`, `labels` and `weights` [B, T] of the decoder. In
    unpacked rows, `encoder_weights` [B, S] is 0 for padding. Packed rows have
    `encoder_segment_ids` [B, S] and `segment_ids` [B, T]: equal numbers mark the same example. The
    positions, `encoder_segment_pos` and `segment_pos`, otherwise follow from them.

    Metrics are those of the decoder's tokens with teacher forcing. Without a longer prompt,
    decoding continues the first token of `ids`.

    The model is any layer from both ids and both `Positions` to logits [B, T, V] that says V with
    `vocab_size`. To decode, it has the methods `encode` and `decode` of
    `TransformerEncoderDecoder`.

    Attributes:
        model: maps the tokens of both to logits, such as `TransformerEncoderDecoder`.
        metrics: additional metrics; `acc_strict` is the share of targets without a wrong token.
    """

    metrics: list[Measure] = [AccuracyStrict()]

    def check(self) -> None:
        super().check()
        self._require_vocabulary()
        if self.decoder is not None and not (
            hasattr(self.model, 'encode') and hasattr(self.model, 'decode')
        ):
            raise ValueError(
                f'decoder: model ({type(self.model).__name__}) has no methods `encode` and '
                '`decode`, with which a `TransformerEncoderDecoder` decodes'
            )

    def check_input(self, data: Input) -> None:
        super().check_input(data)
        there = data.element_spec()
        needed = 'encoder_segment_ids' if 'segment_ids' in there else 'encoder_weights'
        if needed not in there:
            raise UserError(f'its batches have no `{needed}`, by which padding is known')

    def model_inputs(self, batch: DeviceBatch) -> tuple[object, ...]:
        source_BS, ids_BT = batch['encoder_ids'], batch['ids']
        if 'segment_ids' in batch:
            positions = Positions.packed(batch['segment_ids'], batch.get('segment_pos'))
            return source_BS, ids_BT, _source_positions(batch), positions
        return source_BS, ids_BT, _source_positions(batch)

    def extender(self, variables: Any, batch: DeviceBatch, context: ForwardContext) -> Extend:
        def encode() -> dict[str, Any]:
            with forward_context(dataclasses.replace(context, cache_length=None)):
                memory: Any = self.model.module().apply(
                    variables, batch['encoder_ids'], _source_positions(batch), _method='encode'
                )
            return dict(memory._asdict())

        def extend(cache: Cache, ids: jax.Array, positions: Positions) -> tuple[Cache, jax.Array]:
            # The output of the encoder is part of the cache: each text of a prompt needs it.
            cache = cache or {'memory': encode(), 'decoder': None}
            memory = Memory(**cache['memory'])
            decoder, logits = self._with_cache(
                variables, cache['decoder'], context, ids, memory, positions, method='decode'
            )
            return {'memory': cache['memory'], 'decoder': decoder}, logits

        return extend

    def num_tokens(self, batch: DeviceBatch) -> int:
        return math.prod(batch['encoder_ids'].shape) + math.prod(batch['ids'].shape)

    def _prompt_length(self) -> int | None:
        return super()._prompt_length() or 1


def _source_positions(batch: DeviceBatch) -> Positions:
    if 'encoder_segment_ids' in batch:
        return Positions.packed(batch['encoder_segment_ids'], batch.get('encoder_segment_pos'))
    positions = Positions.unpacked(batch['encoder_ids'].shape)
    if 'encoder_weights' not in batch:
        return positions
    return positions._replace(segment_BT=(batch['encoder_weights'] > 0).astype(jnp.int32))
